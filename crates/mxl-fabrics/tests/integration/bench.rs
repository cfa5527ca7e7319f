//! `mxl-bench`: it measures everything and labels the results. Speed is not checked.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let base = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let size = ["-d", base, "--width", "192", "--height", "40"];
    Command::new(env!("CARGO_BIN_EXE_mxl-bench")).args(size).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn everything_is_measured_as_json() {
    let said: serde_json::Value =
        serde_json::from_str(&text(&bench(&["-n", "20", "--interval", "200", "--json", "--readers", "2"])))
            .unwrap();
    assert_eq!(
        (said["readers"].as_u64(), said["grain_bytes"].as_u64()),
        (Some(2), Some(192 / 48 * 128 * 40))
    );
    for (name, count) in
        [("futex", 40), ("blocked", 40), ("polling", 40), ("commit", 20), ("commit_filled", 20), ("read", 20)]
    {
        let figures = &said["ns"][name];
        // A reader that does not get a core for long misses grains.
        let there = figures["count"].as_u64().unwrap();
        assert!(there <= count && there + said["missed"].as_u64().unwrap() >= count, "{name}: {said}");
        let figure = |key: &str| figures[key].as_u64().unwrap();
        assert!(figure("p50") <= figure("p99") && figure("p99") <= figure("p99_9"), "{said}");
        assert!(figure("p99_9") <= figure("max") && figure("max") > 0, "{said}");
    }
    for provider in ["shm", "udp"] {
        let copies = &said["one_in_flight"][provider];
        assert!(copies["ns"]["count"] == 20 && copies["grains_per_s"].as_f64().unwrap() > 0.0, "{said}");
    }
    for key in ["memcpy_bytes_per_s", "memcpy_ring_bytes_per_s"] {
        assert!(said[key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn a_table_for_people_and_reasons_for_what_cannot_be() {
    let table = text(&bench(&["-n", "20", "--interval", "200"]));
    for line in [
        "reader processes: 1\n",
        "bare futex",
        "a blocked reader",
        "over shm",
        "over udp",
        "shm: ",
        "udp: ",
        "memcpy: ",
    ] {
        assert!(table.contains(line), "{line}: {table}");
    }
    // A reader that cannot start prints the reason, and the measurement ends.
    let nowhere = bench(&["--role", "reader", "-d", "/nowhere"]);
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere"), "{nowhere:?}");
    for (wrong, why) in [("0,9999", "--cores"), ("0", "two cores"), ("0,1,2", "two cores")] {
        let refused = bench(&["--cores", wrong]);
        assert_eq!(refused.status.code(), Some(1), "{wrong}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{wrong}: {refused:?}");
    }
}

#[test]
fn streams_are_counted_and_their_payload_is_checked() {
    let pictures = ["stream", "--seconds", "0.4", "--json"];
    let ways: [&[&str]; 4] =
        [&[], &["--parts", "40", "--busy"], &["--audio", "3", "--batch", "100"], &["--rate", "25"]];
    for way in ways {
        let said = text(&bench(&[&pictures[..], way].concat()));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        for provider in ["shm", "udp"] {
            let report = &said[provider];
            let count = |key: &str| report[key].as_u64().unwrap();
            // On a loaded machine a source overwrites data before it is sent, and the report says so.
            assert!(count("committed") >= 10 && count("published") > 0, "{way:?}: {said}");
            assert_eq!(count("wrong"), 0, "{way:?}: {said}");
            assert_eq!(report["ns"]["count"].as_u64().unwrap(), count("published"), "{way:?}: {said}");
            assert!(report["cores"].as_array().unwrap().len() == 2, "{way:?}: {said}");
        }
    }
    let table = text(&bench(&["stream", "--seconds", "0.1", "--over", "shm"]));
    assert!(table.contains("arrived whole") && !table.contains("udp"), "{table}");
    for wrong in [&["stream", "--seconds", "0"][..], &["--rate", "0", "stream"], &["stream", "--batch", "48"]]
    {
        assert_eq!(bench(wrong).status.code(), Some(1), "{wrong:?}");
    }
}

#[test]
fn one_thread_reads_many_flows() {
    let said = text(&bench(&["flows", "--flows", "150", "--seconds", "0.3", "--json"]));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let heard = said["ns"]["count"].as_u64().unwrap() + said["missed"].as_u64().unwrap();
    assert!(heard == 150 * 18 && said["flows"] == 150, "{said}");
    assert!(text(&bench(&["flows", "--seconds", "0.1"])).contains("100 flows"));
}
