// OpenAI's JavaScript SDK against BASE_URL MODEL: one JSON line a check.
import assert from "node:assert";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Name one colour." }];
const ask = { model, messages, max_tokens: 8, temperature: 0 };

const checks = {
  async whole() {
    const got = await client.chat.completions.create(ask);
    assert(got.choices[0].message.content);
    assert(got.usage.completion_tokens >= 1 && got.usage.completion_tokens <= 8);
  },
  async stream() {
    const pieces = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let usages = 0;
    for await (const piece of pieces) {
      text += piece.choices[0]?.delta?.content ?? "";
      usages += piece.usage ? 1 : 0;
    }
    assert.equal(text, (await client.chat.completions.create(ask)).choices[0].message.content);
    assert.equal(usages, 1);
  },
  async models() {
    const ids = [];
    for await (const each of client.models.list()) ids.push(each.id);
    assert(ids.includes(model));
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ ...ask, model: "no-such-model" }), (error) => error.status === 404);
    await assert.rejects(client.chat.completions.create({ ...ask, max_tokens: -1 }), (error) => error.status === 400);
  },
  async leaving() {
    const pieces = await client.chat.completions.create({ ...ask, max_tokens: 400, stream: true });
    for await (const _ of pieces) break;
  },
};

for (const [check, run] of Object.entries(checks)) {
  try {
    await run();
    console.log(JSON.stringify({ check, ok: true }));
  } catch (error) {
    console.log(JSON.stringify({ check, ok: false, why: String(error).slice(0, 300) }));
  }
}
