//! SipHash-2-4 (Aumasson and Bernstein, 2012) for address cookies and session names, and CRC-32C (RFC 3720, B.4) for
//! packets with a checksum.

/// A secret of the endpoint.
#[derive(Clone, Copy)]
pub struct Key(pub u64, pub u64);

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

/// The keyed hash of `bytes`.
pub fn sip(key: Key, bytes: &[u8]) -> u64 {
    let mut v = [
        key.0 ^ 0x736f_6d65_7073_6575,
        key.1 ^ 0x646f_7261_6e64_6f6d,
        key.0 ^ 0x6c79_6765_6e65_7261,
        key.1 ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|&word| absorb(u64::from_le_bytes(word)));
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    absorb(u64::from_le_bytes(last));
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut index = 0;
    while index < 256 {
        let (mut crc, mut bit) = (index as u32, 0);
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][index] = crc;
        index += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut index = 0;
        while index < 256 {
            let before = tables[table - 1][index];
            tables[table][index] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            index += 1;
        }
        table += 1;
    }
    tables
}

static TABLES: [[u32; 256]; 8] = tables();

/// CRC-32C of the concatenation of `parts`.
pub fn crc(parts: &[&[u8]]) -> u32 {
    let mut crc = !0u32;
    for part in parts {
        let (words, rest) = part.as_chunks::<8>();
        for word in words {
            let word = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
            crc = word
                .iter()
                .zip(TABLES.iter().rev())
                .fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)]);
        }
        for &byte in rest {
            crc = (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)];
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_gives_the_value_of_its_paper() {
        let key = Key(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let bytes: [u8; 15] = core::array::from_fn(|n| n as u8);
        assert_eq!(sip(key, &bytes), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn crc_gives_the_values_of_rfc_3720() {
        assert_eq!(crc(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc(&[&[0xff; 32]]), 0x62a8_ab43);
        let rising: [u8; 32] = core::array::from_fn(|n| n as u8);
        assert_eq!(crc(&[&rising]), 0x46dd_794e);
        assert_eq!(crc(&[&rising[..5], &rising[5..]]), 0x46dd_794e);
    }
}
