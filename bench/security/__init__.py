"""What attackers try from outside, in earnest."""
