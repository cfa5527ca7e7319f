//! Keys and encryption of `udp`, in builds with the feature `encryption` and without it. Neither build may
//! send data in the clear that a program wants to be protected.
#![cfg(feature = "udp")]
#![forbid(unsafe_code)]

use std::process::Command;

use ofi::{Errno, Error, GetinfoFlags, Hints, Node, Version};

fn has_it() -> bool {
    cfg!(feature = "encryption")
}

fn hints() -> Hints {
    Hints::new().provider("udp")
}

#[track_caller]
fn assert_names_the_feature(error: &Error) {
    assert!(error.to_string().contains("feature `encryption`"), "{error}");
}

#[test]
fn a_key_is_granted_or_refused() {
    match Node::open(&hints().auth_key(*b"job 7")) {
        Ok(node) => {
            assert!(has_it(), "a build without ciphers took a key");
            drop(node);
        }
        Err(error) => {
            assert!(!has_it(), "{error}");
            assert_eq!(error, Errno::ENODATA);
            assert_names_the_feature(&error);
        }
    }
    assert!(Node::open(&hints()).is_ok(), "a node without a key needs the feature");
}

/// A program may write the key into an info from getinfo.
#[test]
fn a_key_that_getinfo_did_not_see_is_not_dropped() {
    let (none, hints) = (GetinfoFlags::empty(), hints());
    let mut info = ofi::getinfo(Version::API, None, None, none, Some(&hints)).unwrap().remove(0);
    let domain = ofi::open_fabric(&info).unwrap().open_domain(&info).unwrap();
    (info.ep_attr.auth_key, info.ep_attr.auth_key_size) = (b"job 7".to_vec(), 5);
    match domain.open_endpoint(&info) {
        Ok(_) => assert!(has_it()),
        Err(error) => assert!(!has_it() && error == Errno::EINVAL, "{error}"),
    }
}

#[test]
fn encryption_that_the_settings_require_is_done_or_refused() {
    if std::env::var_os("FI_UDP_ENCRYPTION").is_some() {
        match Node::open(&hints()) {
            Ok(_) => assert!(has_it(), "a build without ciphers sends in the clear"),
            Err(error) => {
                assert!(!has_it(), "{error}");
                assert_names_the_feature(&error);
            }
        }
        return;
    }
    for word in ["required", "Required"] {
        let name = "encryption_that_the_settings_require_is_done_or_refused";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let again = again.args(["--exact", name, "--nocapture"]).env("FI_UDP_ENCRYPTION", word);
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{word}: {text}");
    }
}
