"""`ostinato bisect`: what makes two ways to run a program differ, and the smallest part of it that shows the difference."""
