"""Boards, links and nodes: what hardware files say."""
