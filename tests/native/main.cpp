// Tests of the kernels on every instruction set that this machine has. Prints what fails; exits 1 if anything did.
#include "check.h"
#include "dispatch.h"

int main() {
    test_numbers();
    test_matrix();
    test_kv();
    test_pace();
    test_threads();
    for (const decodeloop::Kernels* kernels : decodeloop::available_kernels()) {
        test_matmul(*kernels);
        test_rows(*kernels);
        test_attention(*kernels);
        test_draw(*kernels);
        std::printf("%s tested\n", kernels->name);
    }
    if (failures() > 0) std::printf("%d checks failed\n", failures());
    return failures() > 0 ? 1 : 0;
}
