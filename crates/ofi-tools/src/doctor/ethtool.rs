//! The offload features of a network device, which `ethtool -k` shows, read by the same requests (`linux/ethtool.h`).

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
/// The string set of the feature names.
const FEATURES: u32 = 4;
/// Bytes of a name, padded with zeroes.
const NAME: usize = 32;
/// Maximum features that are read. No kernel has so many.
const MAX_FEATURES: u32 = 1024;

/// One feature of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name.
    pub name: String,
    /// Whether it is on.
    pub active: bool,
    /// Whether it can be switched.
    pub changeable: bool,
}

/// All features of an interface.
///
/// # Errors
/// The kernel's error: `ENODEV`, `EOPNOTSUPP`.
pub fn features(interface: &str) -> io::Result<Vec<Feature>> {
    // Any socket works.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    // Command, unused, a mask of sets in two halves; the kernel writes a count for each set in it.
    let mut info = [GSSET_INFO, 0, 1 << FEATURES, 0, 0];
    ask(&socket, interface, &mut info)?;
    let count = info[4].min(MAX_FEATURES);
    // Command, set, count, names. The count is a constant of the kernel, which writes that many.
    let mut names = vec![0; 3 + MAX_FEATURES as usize * NAME / 4];
    names[..3].copy_from_slice(&[GSTRINGS, FEATURES, count]);
    ask(&socket, interface, &mut names)?;
    // Command, blocks, and a block for each 32 features: available, requested, active, never changed.
    let blocks = count.div_ceil(32);
    let mut bits = vec![0; 2 + blocks as usize * 4];
    bits[..2].copy_from_slice(&[GFEATURES, blocks]);
    ask(&socket, interface, &mut bits)?;
    Ok(parse(&names[3..], &bits[2..], count as usize))
}

/// Parses names of 32 bytes each, and blocks of four words for 32 features each.
fn parse(names: &[u32], blocks: &[u32], count: usize) -> Vec<Feature> {
    let bytes: Vec<u8> = names.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let named = bytes.chunks_exact(NAME).take(count).enumerate();
    named
        .filter_map(|(at, name)| {
            let block = blocks.chunks_exact(4).nth(at / 32)?;
            let has = |word: usize| block[word] >> (at % 32) & 1 != 0;
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            Some(Feature { name, active: has(2), changeable: has(0) && !has(3) })
        })
        .filter(|feature| !feature.name.is_empty())
        .collect()
}

/// Makes the kernel answer a request in place.
fn ask(socket: &UdpSocket, interface: &str, words: &mut [u32]) -> io::Result<()> {
    // SAFETY: plain data, for which zeroes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the name ends with a zero byte, and `words` has room for all that the kernel writes for this command; see
    // the comments where callers build it.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_of_names_and_blocks() {
        let mut names = vec![0u8; 40 * NAME];
        names[..6].copy_from_slice(b"rx-gro");
        names[33 * NAME..33 * NAME + 6].copy_from_slice(b"tx-udp");
        let words: Vec<u32> =
            names.chunks_exact(4).map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap())).collect();
        let found = parse(&words, &[1, 0, 1, 0, 2, 0, 0, 2], 40);
        let feature = |name: &str, active, changeable| Feature { name: name.into(), active, changeable };
        assert_eq!(found, [feature("rx-gro", true, true), feature("tx-udp", false, false)]);
        // Fewer blocks than names.
        assert_eq!(parse(&words, &[1, 0, 1, 0], 40).len(), 1);
    }

    #[test]
    fn loopback_has_features_and_what_is_not_there_is_an_error() {
        let found = features("lo").expect("every kernel has them");
        assert!(found.iter().any(|feature| feature.name == "tx-udp-segmentation"), "{found:?}");
        assert!(features("none").is_err() && features("a-name-of-more-than-sixteen").is_err());
    }
}
