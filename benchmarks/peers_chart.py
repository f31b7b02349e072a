"""Draws peers.py's result:  python benchmarks/peers.py --json | python benchmarks/peers_chart.py OUT.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROW, LEFT, WIDTH, TOP = 20, 240, 640, 80
TITLE = "Tokens per second beside other engines, same weights"
OURS, OTHERS = "#2f6f9f", "#b9b2a6"
PANELS = (("copy", 1, "copy and edit tasks, one at a time"), ("open", 1, "open questions, one at a time"))
MOST = ("mixed", 16, "16 streams, prompts included")


def bars(rows: list[dict], kind: str, streams: int) -> list[dict]:
    """Fastest first."""
    mine = [row for row in rows if row["prompts"] == kind and row["streams"] == streams]
    return sorted(mine, key=lambda row: -row["tokens_s"])


def chart(result: dict) -> str:
    panels = [(title, bars(result["rows"], kind, streams)) for kind, streams, title in (*PANELS, MOST)]
    panels = [(title, rows) for title, rows in panels if rows]
    height = TOP + sum(ROW * (len(rows) + 2) for _, rows in panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{TITLE}</text>',
        f'<text x="12" y="40" fill="#666">{result["device"]}</text>',
        f'<text x="12" y="56" fill="#666">{result["blocks"]} interleaved blocks: medians, least to most</text>',
    ]
    y = TOP
    for title, rows in panels:
        parts.append(f'<text x="12" y="{y + 10}" font-weight="bold">{title}</text>')
        y += ROW
        most = max(row["most"] for row in rows)
        for row in rows:
            parts += bar(row, y, (WIDTH - LEFT - 70) / most)
            y += ROW
        y += ROW
    return "\n".join([*parts, "</svg>"]) + "\n"


def bar(row: dict, y: int, scale: float) -> list[str]:
    middle, name = y + ROW / 2, f"{row['engine']}, {row['arm']}"
    low, high = LEFT + row["least"] * scale, LEFT + row["most"] * scale
    color = OURS if row["engine"].startswith("ours") else OTHERS
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{name}</text>',
        f'<rect x="{LEFT}" y="{y + 3}" width="{row["tokens_s"] * scale:.1f}" height="{ROW - 6}" fill="{color}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>',
        f'<text x="{high + 6:.1f}" y="{middle + 4}">{row["tokens_s"]:.0f}</text>',
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(chart(json.loads(sys.stdin.read().splitlines()[-1])))
