"""Chapter 03: Feeding the replicas."""

from dpbook.book.ch03.feeds import draw_feeds, play_feeds
