"""Draws speculation.py's result:  python benchmarks/speculation.py --json | python benchmarks/chart.py OUT.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROW, LEFT, WIDTH, TOP = 26, 150, 560, 72
COLORS = {"copy": "#2f6f9f", "open": "#b5651d"}
TITLES = {"copy": "copy and edit tasks", "open": "open questions"}


def chart(result: dict) -> str:
    rows = result["results"]
    most = max(1.5, *(row["high"] for row in rows)) * 1.04
    height = TOP + ROW * (len(rows) + 2) + 30

    def x(ratio: float) -> float:
        return LEFT + ratio / most * (WIDTH - LEFT - 60)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        '<text x="12" y="22" font-size="15" font-weight="bold">Decode speed against plain decoding, one request</text>',
        f'<text x="12" y="41" fill="#666">{result["device"]}; {result["runner"]}, {result["format"]}</text>',
        '<text x="12" y="58" fill="#666">geometric mean over prompts, 95 % interval; number: draft_len</text>',
    ]
    y = TOP
    group = None
    for row in rows:
        if row["class"] != group:
            group = row["class"]
            y += ROW
            parts.append(f'<text x="12" y="{y - 8}" font-weight="bold">{TITLES.get(group, group)}</text>')
        middle = y + ROW / 2
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{row["arm"]}</text>',
            f'<rect x="{LEFT}" y="{y + 5}" width="{x(row["ratio"]) - LEFT:.1f}" height="{ROW - 10}" '
            f'fill="{COLORS.get(group, "#777")}"/>',
            f'<line x1="{x(row["low"]):.1f}" x2="{x(row["high"]):.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>',
            f'<text x="{x(row["high"]) + 6:.1f}" y="{middle + 4}">{row["ratio"]:.2f}x</text>',
        ]
        y += ROW
    parts += [
        f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="{TOP}" y2="{y}" stroke="#222" stroke-dasharray="4 3"/>',
        f'<text x="{x(1):.1f}" y="{y + 16}" text-anchor="middle" fill="#666">plain</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(chart(json.loads(sys.stdin.read().splitlines()[-1])))
