"""Gate one: who should receive the digest, and what it says, frozen before anything is sent."""
