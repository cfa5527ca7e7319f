//! `mxl-bench`: that it measures everything and says what it is; not how fast anything is.

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let base = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let size = ["-d", base, "-n", "20", "--interval", "200", "--width", "192", "--height", "40"];
    Command::new(env!("CARGO_BIN_EXE_mxl-bench")).args(size).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn everything_is_measured_as_json() {
    let said: serde_json::Value = serde_json::from_str(&text(&bench(&["--json", "--readers", "2"]))).unwrap();
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
    let table = text(&bench(&[]));
    for line in ["bare futex", "a blocked reader", "over shm", "over udp", "shm: ", "udp: ", "memcpy: "] {
        assert!(table.contains(line), "{line}: {table}");
    }
    for (wrong, why) in [("0,9999", "--cores"), ("0", "two cores"), ("0,1,2", "two cores")] {
        let refused = bench(&["--cores", wrong]);
        assert_eq!(refused.status.code(), Some(1), "{wrong}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{wrong}: {refused:?}");
    }
}
