//! C's names of flags and enumerations in options. Case does not matter, and `FI_` may be omitted.

use ofi::raw::{AddrFormat, Caps, EpType, Errno, Error, Mode};

use crate::failure::Failure;

/// `FI_MSG|FI_RMA`.
///
/// # Errors
/// `FI_EINVAL` with the list of known names.
pub fn caps(text: &str) -> Result<Caps, Failure> {
    let known: Vec<(&str, Caps)> = Caps::all().iter_names().collect();
    words(text).try_fold(Caps::empty(), |all, word| Ok(all | find("a capability", word, &known)?))
}

/// `FI_CONTEXT|FI_MSG_PREFIX`.
///
/// # Errors
/// As [`caps`].
pub fn modes(text: &str) -> Result<Mode, Failure> {
    let known: Vec<(&str, Mode)> = Mode::all().iter_names().collect();
    words(text).try_fold(Mode::empty(), |all, word| Ok(all | find("a mode", word, &known)?))
}

/// `FI_EP_RDM`.
///
/// # Errors
/// As [`caps`].
pub fn ep_type(text: &str) -> Result<EpType, Failure> {
    let known: Vec<_> = EpType::VALUES.iter().map(|&value| (value.c_name(), value)).collect();
    find("an endpoint type", text, &known)
}

/// `FI_SOCKADDR_IN`.
///
/// # Errors
/// As [`caps`].
pub fn addr_format(text: &str) -> Result<AddrFormat, Failure> {
    let known: Vec<_> = AddrFormat::VALUES.iter().map(|&value| (value.c_name(), value)).collect();
    find("an address format", text, &known)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(['|', ',']).map(str::trim).filter(|word| !word.is_empty())
}

fn find<T: Copy>(kind: &'static str, word: &str, known: &[(&str, T)]) -> Result<T, Failure> {
    let same = |name: &str| short(name).eq_ignore_ascii_case(short(word.trim()));
    let found = known.iter().find(|(name, _)| same(name)).map(|&(_, value)| value);
    found.ok_or_else(|| {
        let names: Vec<String> = known.iter().map(|(name, _)| format!("FI_{}", short(name))).collect();
        let wanted = format!("one of {}", names.join(", "));
        let error = Error::wanted(Errno::EINVAL, kind, wanted, format!("{word:?}"), "see fi_getinfo(3)");
        Failure::Stack { doing: "reading the options", error }
    })
}

/// `name` without `FI_`.
fn short(name: &str) -> &str {
    match name.get(..3) {
        Some(prefix) if prefix.eq_ignore_ascii_case("FI_") => &name[3..],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_c_reads_them() {
        assert_eq!(caps("FI_MSG|fi_tagged").unwrap(), Caps::MSG | Caps::TAGGED);
        assert_eq!(modes("CONTEXT").unwrap(), Mode::CONTEXT);
        assert_eq!(ep_type("fi_ep_rdm").unwrap(), EpType::Rdm);
        assert_eq!(addr_format("FI_FORMAT_UNSPEC").unwrap(), AddrFormat::Unspec);
    }

    #[test]
    fn a_wrong_name_is_told_the_right_ones() {
        let failure = caps("FI_MSG|FI_RAM").unwrap_err();
        assert_eq!(failure.code(), 22);
        let text = failure.to_string();
        assert!(text.contains("\"FI_RAM\"") && text.contains("FI_RMA"), "{text}");
        assert!(ep_type("é").is_err());
    }
}
