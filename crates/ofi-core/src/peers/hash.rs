//! A hash for which outsiders cannot choose collisions.
//!
//! Addresses come from peers, and anyone who knows how they are hashed can pick many that fall into one bucket. IP
//! addresses may number millions. Each is three 64-bit words, hashed by a sum of products with secret 128-bit factors,
//! of which the upper half is kept: multilinear hashing, in which any two different inputs collide with a probability
//! of 2^-64 over the choice of factors (Carter and Wegman, "Universal classes of hash functions"). The sum alone does
//! not spread a row of neighbours, though: for some factors the addresses 1, 2, 3 ... share their low bits. A bijection
//! that mixes all bits keeps the proven property and spreads them. Everything else is hashed with SipHash, which takes
//! several times as long.

use std::hash::{BuildHasher, RandomState};

use super::key::Key;

/// The secret of one table.
pub(super) struct Secret {
    factors: [u128; 4],
    opaque: RandomState,
}

impl Secret {
    /// A secret from the system's random numbers, by way of the standard library.
    pub fn new() -> Self {
        let random = RandomState::new();
        let factor =
            |at: u64| u128::from(random.hash_one(2 * at)) << 64 | u128::from(random.hash_one(2 * at + 1));
        Self { factors: [factor(0), factor(1), factor(2), factor(3)], opaque: RandomState::new() }
    }

    /// The hash of a key. Equal keys have equal hashes.
    #[inline]
    pub fn hash(&self, key: Key<'_>) -> u64 {
        match key {
            Key::Ip { ip, port, scope } => {
                let ip = ip.to_bits();
                let [start, high, low, rest] = self.factors;
                let sum = start
                    .wrapping_add(high.wrapping_mul(ip >> 64))
                    .wrapping_add(low.wrapping_mul(ip & u128::from(u64::MAX)))
                    .wrapping_add(rest.wrapping_mul(u128::from(scope) << 16 | u128::from(port)));
                mixed((sum >> 64) as u64)
            }
            Key::Opaque(bytes) => self.opaque.hash_one(bytes),
        }
    }
}

/// A bijection under which every bit of the result depends on bits of all of `hash`.
#[inline]
fn mixed(hash: u64) -> u64 {
    let product = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15); // 2^64 over the golden ratio
    product ^ product >> 32
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// How many hashes of neighbouring addresses and ports fall where most do, in proportion to the mean.
    fn crowding(secret: &Secret) -> f64 {
        const HASHES: u32 = 1 << 16;
        let (mut low, mut top) = ([0_u32; 256], [0_u32; 128]);
        for n in 0..HASHES {
            let ip = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n / 16));
            let hash = secret.hash(Key::Ip { ip, port: 5000 + (n % 16) as u16, scope: 0 });
            low[(hash & 255) as usize] += 1;
            top[(hash >> 57) as usize] += 1;
        }
        let part = |counts: &[u32]| {
            f64::from(counts.iter().copied().fold(0, u32::max)) * counts.len() as f64 / f64::from(HASHES)
        };
        part(&low).max(part(&top))
    }

    #[test]
    fn hashes_spread_in_every_part_that_the_index_uses() {
        for _ in 0..10 {
            let crowding = crowding(&Secret::new());
            assert!(crowding < 3.0, "{crowding}"); // below 2 for 20,000 secrets
        }
    }

    /// Factors that move neither the low bits of the sum's upper half nor the top ones.
    #[test]
    fn hashes_spread_whatever_the_secret_is() {
        for bits in (64..128).step_by(4) {
            for port in [1, 1 << 64, 1 << 80, 1 << 100, u128::MAX / 5] {
                let factors = [3, 1 << 90, 1 << bits, port];
                let secret = Secret { factors, opaque: RandomState::new() };
                let crowding = crowding(&secret);
                assert!(crowding < 20.0, "factor 2^{bits}, {port:#x}: {crowding}"); // 256 and 128 where all are in one place
            }
        }
    }

    #[test]
    fn each_table_has_a_secret_of_its_own() {
        let key = Key::Ip { ip: Ipv6Addr::LOCALHOST, port: 1, scope: 0 };
        assert_ne!(Secret::new().hash(key), Secret::new().hash(key));
        assert_ne!(Secret::new().hash(Key::Opaque(b"a")), Secret::new().hash(Key::Opaque(b"a")));
    }
}
