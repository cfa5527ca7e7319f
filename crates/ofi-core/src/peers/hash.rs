//! A hash that nobody outside can choose collisions for.
//!
//! Addresses come from peers, and whoever knows how they are hashed can pick many that fall into one bucket.
//! IP addresses, of which there are millions, are three 64-bit words, hashed by a sum of products with secret
//! 128-bit factors of which the upper half is kept: multilinear hashing, for which any two different inputs
//! collide with a chance of 2^-64 over the choice of factors (Carter and Wegman, "Universal classes of hash
//! functions"). Everything else is hashed with SipHash, which takes several times as long.

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
                (sum >> 64) as u64
            }
            Key::Opaque(bytes) => self.opaque.hash_one(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn hashes_spread_in_every_part_that_the_index_uses() {
        let secret = Secret::new();
        let (mut low, mut top) = ([0_u32; 256], [0_u32; 128]);
        for n in 0..1_u32 << 16 {
            let ip = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n / 16));
            let hash = secret.hash(Key::Ip { ip, port: 5000 + (n % 16) as u16, scope: 0 });
            low[(hash & 255) as usize] += 1;
            top[(hash >> 57) as usize] += 1;
        }
        // 256 and 512 are expected; sixfold in one place would make the index visibly slow.
        assert!(low.iter().all(|&count| count < 6 * 256), "{low:?}");
        assert!(top.iter().all(|&count| count < 6 * 512), "{top:?}");
    }

    #[test]
    fn each_table_has_a_secret_of_its_own() {
        let key = Key::Ip { ip: Ipv6Addr::LOCALHOST, port: 1, scope: 0 };
        assert_ne!(Secret::new().hash(key), Secret::new().hash(key));
        assert_ne!(Secret::new().hash(Key::Opaque(b"a")), Secret::new().hash(Key::Opaque(b"a")));
    }
}
