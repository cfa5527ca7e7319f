use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

static FLAG: Setting<bool> = Setting::new("shm", "disable_cma", false, "Do not use CMA");
static SLOTS: Setting<usize> = Setting::new("shm", "ring_size", 1024, "Slots in a ring").range(16, 1 << 20);
static LEVEL: Setting<i64> = Setting::new("shm", "level", -3, "A level").range(-10, 10);
static NAME: Setting<&'static str> = Setting::new("ofi-rxm", "iface", "lo", "Interface");
static BOUND: Setting<Duration> =
    Setting::new(CORE, "peer_timeout", Duration::from_secs(5), "When to give a peer up")
        .range(Duration::from_millis(1), Duration::from_secs(3600));
static MODE: Setting<&'static str> = Setting::new("shm", "mode", "auto", "A word").one_of(&["auto", "fast"]);

fn read<T: Value>(setting: &Setting<T>, text: &str) -> Result<Option<T::Read>, String> {
    setting.read(Some(OsStr::new(text)))
}

#[test]
fn variables_are_named_after_provider_and_setting() {
    assert_eq!(SLOTS.env(), "FI_SHM_RING_SIZE");
    assert_eq!(NAME.env(), "FI_OFI_RXM_IFACE");
    assert_eq!(BOUND.env(), "FI_PEER_TIMEOUT");
    assert_eq!(LOG_LEVEL.env(), "FI_LOG_LEVEL");
}

#[test]
fn without_a_variable_the_default_holds() {
    assert_eq!(SLOTS.get(), 1024);
    assert_eq!(SLOTS.explicit(), None);
    assert!(!FLAG.get());
    assert_eq!(NAME.get(), "lo");
    assert_eq!(BOUND.get(), Duration::from_secs(5));
}

#[test]
fn booleans_take_the_words_that_c_takes() {
    for text in ["1", "true", "TRUE", "yes", "On", " 1 "] {
        assert_eq!(read(&FLAG, text), Ok(Some(true)), "{text}");
    }
    for text in ["0", "false", "No", "off"] {
        assert_eq!(read(&FLAG, text), Ok(Some(false)), "{text}");
    }
    for text in ["2", "y", "enabled", "-1"] {
        assert!(read(&FLAG, text).is_err(), "{text}");
    }
}

#[test]
fn sizes_take_suffixes_and_the_bases_of_strtol() {
    let cases = [
        ("4096", 4096),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        ("64 KiB", 64 << 10),
        ("64KB", 64 << 10),
        ("100B", 100),
        ("3M", 3 << 20),
        ("2G", 2 << 30),
        ("0x1b", 0x1b),
        ("0100", 64),
        ("0", 0),
        ("1T", 1 << 40),
    ];
    for (text, expected) in cases {
        assert_eq!(usize::parse(text), Ok(expected), "{text}");
    }
    for text in
        ["-1", "+1", "", "K", "12Q", "1.5M", "08", "0x", "1 2", "iB", "18446744073709551616", "99999999T"]
    {
        assert!(usize::parse(text).is_err(), "{text}");
    }
}

#[test]
fn integers_have_signs_and_limits() {
    assert_eq!(read(&LEVEL, "-7"), Ok(Some(-7)));
    assert_eq!(read(&LEVEL, "+7"), Ok(Some(7)));
    assert_eq!(read(&LEVEL, "0x0a"), Ok(Some(10)));
    assert_eq!(read(&LEVEL, "11"), Err("it must lie between -10 and 10".into()));
    assert_eq!(i64::parse("-9223372036854775808"), Ok(i64::MIN));
    assert!(i64::parse("9223372036854775808").is_err());
    assert!(i64::parse("--1").is_err());
    assert!(i64::parse("-").is_err());
}

#[test]
fn times_need_a_unit_they_know_and_are_milliseconds_without() {
    let cases = [
        ("250", Duration::from_millis(250)),
        ("20us", Duration::from_micros(20)),
        ("20 µs", Duration::from_micros(20)),
        ("7ns", Duration::from_nanos(7)),
        ("1.5s", Duration::from_millis(1500)),
        (".5s", Duration::from_millis(500)),
        ("2min", Duration::from_secs(120)),
        ("1h", Duration::from_secs(3600)),
        ("1.0000000019s", Duration::from_nanos(1_000_000_001)),
    ];
    for (text, expected) in cases {
        assert_eq!(Duration::parse(text), Ok(expected), "{text}");
    }
    for text in ["s", ".s", "1.2.3s", "5 weeks", "-1s", "600y", "5124095577h"] {
        assert!(Duration::parse(text).is_err(), "{text}");
    }
    assert!(read(&BOUND, "2h").is_err_and(|reason| reason == "it must lie between 1ms and 3600s"));
}

#[test]
fn an_empty_variable_clears_all_but_text() {
    assert_eq!(read(&SLOTS, ""), Ok(None));
    assert_eq!(read(&FLAG, "  "), Ok(None));
    assert_eq!(read(&MODE, ""), Ok(None));
    assert_eq!(read(&NAME, ""), Ok(Some(String::new())));
}

#[test]
fn words_are_checked_whatever_their_case() {
    assert_eq!(read(&MODE, "FAST"), Ok(Some("fast".into())));
    assert_eq!(read(&MODE, " fast "), Ok(Some("fast".into())));
    assert_eq!(read(&MODE, "slow"), Err("it must be one of auto, fast".into()));
}

#[test]
fn where_the_default_protects_less_a_wrong_value_is_an_error() {
    let checked = |text: &str| MODE.checked_as(Some(OsStr::new(text)));
    assert_eq!(checked("Fast"), Ok("fast".into()));
    assert_eq!((checked(""), MODE.checked_as(None)), (Ok("auto".into()), Ok("auto".into())));
    let problem = checked("fsat").unwrap_err();
    assert_eq!(problem.to_string(), "FI_SHM_MODE=fsat cannot be used: it must be one of auto, fast");
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let raw = OsStr::from_bytes(&[b'1', 0xff]);
    assert!(SLOTS.read(Some(raw)).is_err());
    assert!(NAME.read(Some(raw)).is_err());
}

#[test]
fn the_list_shows_value_default_and_problem() {
    static HERE: &[&dyn AnySetting] = &[&SLOTS, &MODE];
    register(HERE);
    register(HERE); // twice is once
    let environment = |env: &str| match env {
        "FI_SHM_RING_SIZE" => Some(OsString::from("64K")),
        "FI_SHM_MODE" => Some(OsString::from("slow")),
        _ => None,
    };
    let listed = registry::list_with(environment);
    let of = |env: &str| {
        let mut found = listed.iter().filter(|listed| listed.env == env);
        let first = found.next().unwrap();
        assert_eq!(found.next(), None);
        first
    };
    let slots = of("FI_SHM_RING_SIZE");
    assert_eq!((slots.current.as_str(), slots.default.as_str()), ("65536", "1024"));
    assert_eq!(
        (slots.kind, slots.is_set, slots.provider, slots.name),
        (ValueKind::Size, true, "shm", "ring_size")
    );
    let mode = of("FI_SHM_MODE");
    assert_eq!((mode.current.as_str(), mode.is_set), ("auto", false));
    let problem = mode.problem.as_ref().unwrap();
    assert_eq!(problem.to_string(), "FI_SHM_MODE=slow cannot be used: it must be one of auto, fast");
}

#[test]
fn the_stacks_own_settings_have_defaults_that_they_accept() {
    for setting in SETTINGS {
        let text = setting.default_text();
        assert!(setting.inspect(Some(OsStr::new(&text))).is_ok(), "{}", setting.env());
        assert!(!setting.help().is_empty());
    }
}

#[test]
fn a_filter_is_a_list_or_its_opposite() {
    let only = NameFilter::parse("shm, UDP");
    assert!(only.allows("shm") && only.allows("udp") && !only.allows("tcp"));
    let not = NameFilter::parse("^shm");
    assert!(!not.allows("shm") && not.allows("udp"));
    for all in ["", "^", " , "] {
        assert!(NameFilter::parse(all).allows("anything"), "{all:?}");
        assert!(NameFilter::parse(all).allows_all());
    }
    assert_eq!(only.names().collect::<Vec<_>>(), ["shm", "udp"]);
}

proptest! {
    #[test]
    fn text_never_panics_and_shown_values_read_back(text in ".{0,24}", size: usize, number: i64, ns: u64) {
        let _ = (usize::parse(&text), i64::parse(&text), Duration::parse(&text), bool::parse(&text));
        let time = Duration::from_nanos(ns);
        prop_assert_eq!(usize::parse(&size.show()), Ok(size));
        prop_assert_eq!(i64::parse(&number.show()), Ok(number));
        prop_assert_eq!(Duration::parse(&time.show()), Ok(time));
    }
}
