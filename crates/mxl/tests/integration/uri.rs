//! The URI of a domain and its flows.

use std::path::Path;

use mxl::{Uri, Uuid};
use proptest::prelude::*;

const ONE: &str = "5fbec3b1-1b0f-417d-9059-8b94a47197ed";
const TWO: &str = "B3BB5BE7-9FE9-4324-A5BB-4C70E1084449";

fn parse(text: &str) -> Uri {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_domain_and_its_flows_are_named() {
    assert_eq!(parse("mxl:///dev/shm/mxl"), Uri::new("/dev/shm/mxl", []));
    let both = parse(&format!("mxl:///dev/shm/mxl/?id={ONE}&id={TWO}"));
    assert_eq!(both.flows, [ONE, TWO].map(|id| Uuid::try_parse(id).unwrap()));
    assert_eq!((both.authority.as_deref(), both.domain.as_path()), (None, Path::new("/dev/shm/mxl/")));
    for authority in ["host1.local", "10.1.2.3:5000", "[2001:db8::2]"] {
        let uri = parse(&format!("MXL://{authority}/domain/path?id={ONE}"));
        assert_eq!(uri.authority.as_deref(), Some(authority));
        assert_eq!(uri.domain, Path::new("/domain/path"));
    }
    assert_eq!(parse(&format!("mxl:///mxl?other=5&id={ONE}&&id#id={TWO}")).flows.len(), 1);
}

#[test]
fn a_path_may_have_escapes() {
    assert_eq!(parse("mxl:///dev/my%20studio%3f").domain, Path::new("/dev/my studio?"));
    assert_eq!(Uri::new("/dev/my studio?", []).to_string(), "mxl:///dev/my%20studio%3F");
}

#[test]
fn what_is_no_uri_is_refused_by_its_reason() {
    for (text, reason) in [
        ("", "begins with mxl://"),
        ("mxl:", "begins with mxl://"),
        ("http:///dev/shm/mxl", "begins with mxl://"),
        ("/dev/shm/mxl", "begins with mxl://"),
        ("äääääää", "begins with mxl://"),
        ("mxl://", "no path"),
        ("mxl://host", "no path"),
        ("mxl://?id=5", "no path"),
        ("mxl:///a%2", "hexadecimal"),
        ("mxl:///a%zz", "hexadecimal"),
        ("mxl:///a%00", "hexadecimal"),
        ("mxl:///a?id=", "is no UUID"),
        ("mxl:///a?id=5", "is no UUID"),
        ("mxl:///a?id={5fbec3b1-1b0f-417d-9059-8b94a47197ed}", "is no UUID"),
        ("mxl:///a?id=5fbec3b11b0f417d90598b94a47197ed", "is no UUID"),
    ] {
        let error = text.parse::<Uri>().unwrap_err().to_string();
        assert!(error.starts_with(text) && error.contains(reason), "{error}");
    }
}

#[test]
fn an_authority_is_a_host_and_its_port() {
    for (authority, host) in [
        ("", None),
        ("studio-b", Some(("studio-b", None))),
        ("192.0.2.1:7480", Some(("192.0.2.1", Some(7480)))),
        ("[2001:db8::1]", Some(("2001:db8::1", None))),
        ("[::1]:1", Some(("::1", Some(1)))),
    ] {
        assert_eq!(parse(&format!("mxl://{authority}/")).host().unwrap(), host, "{authority}");
    }
    for authority in
        ["b:", "b:0", "b:65536", "b:x", ":1", "::1", "[b]:1", "[::1", "[::1]1", "me@b", "b%20", "b:1:2"]
    {
        let error = parse(&format!("mxl://{authority}/")).host().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{authority}: ")) && error.contains("HOST:PORT"), "{error}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        path in "/[^\\x00]{0,20}", ids in prop::collection::vec(any::<u128>(), 0..4), host in "[a-z0-9.:]{0,9}",
    ) {
        let uri = Uri::new(path, ids.into_iter().map(Uuid::from_u128));
        let uri = Uri { authority: Some(host).filter(|host| !host.is_empty()), ..uri };
        prop_assert_eq!(uri.to_string().parse::<Uri>().unwrap(), uri);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "(mxl://)?[\\PC%?&=/#]{0,40}") {
        if let Ok(uri) = text.parse::<Uri>() {
            let _ = uri.host();
            prop_assert_eq!(uri.to_string().parse::<Uri>().unwrap(), uri);
        }
    }
}
