//! The contents of a region: those of the C++ demo, whose `std::uniform_int_distribution<uint64_t>` over all 64-bit
//! numbers returns the numbers of its `std::mt19937_64` unchanged.

use rand_mt::Mt64;

/// `len` bytes, a multiple of 8: the generator's numbers, each little-endian.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = Mt64::new(seed);
    (0..len / 8).flat_map(|_| numbers.next_u64().to_le_bytes()).collect()
}

/// Seed of region `nth` of a request with `seed`.
pub fn seed_of(seed: u64, nth: usize) -> u64 {
    seed.wrapping_add(nth as u64)
}

/// `count` of the numbers below `all`, ascending, uniformly chosen.
pub fn sample(seed: u64, count: usize, all: u32) -> Vec<u32> {
    let mut numbers = Mt64::new(seed);
    let mut wanted = count as u64;
    let mut chosen = Vec::with_capacity(count);
    for number in 0..all {
        let left = u64::from(all - number);
        // Taken with probability `wanted / left`: all of the last ones, if that many are still wanted.
        if numbers.next_u64() % left < wanted {
            chosen.push(number);
            wanted -= 1;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_that_of_the_cpp_standard() {
        // [rand.predef]: the 10,000th number of a mt19937_64 with its default seed.
        let bytes = bytes(5489, 80_000);
        assert_eq!(bytes[79_992..], 9_981_545_732_273_789_042_u64.to_le_bytes());
    }

    #[test]
    fn a_sample_has_as_many_different_numbers_as_asked_for() {
        for (count, all) in [(0, 5), (3, 5), (5, 5), (8, 16), (100, 2000)] {
            let chosen = sample(7, count, all);
            assert_eq!(chosen.len(), count);
            assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(chosen.iter().all(|&number| number < all));
        }
        assert_ne!(sample(1, 8, 1000), sample(2, 8, 1000));
    }
}
