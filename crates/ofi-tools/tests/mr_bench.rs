//! `mr-bench` with a target of its own, in all ways, with every byte compared.

use std::process::{Command, Output};

fn mr_bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mr-bench")).args(arguments).output().expect("mr-bench runs")
}

fn rows(arguments: &[&str]) -> serde_json::Value {
    let common = ["--check", "--json", "--iterations", "5", "--warmup", "1"];
    let output = mr_bench(&[&common, arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn every_byte_is_right_over_shared_memory_and_two_rails_of_sockets() {
    for (rails, memory) in [("shm", "--library-memory"), ("shm", "--threads=2"), ("udp,udp", "--threads=1")] {
        let json = rows(&["--rails", rails, "--sizes", "100,64K,1M", "--batches", "1,3", memory]);
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * 3 * 2);
        let threads = if memory == "--threads=2" { 2 } else { 1 };
        assert!(
            rows.iter().all(
                |row| row["transfers"] == 5 * threads && row["gigabytes_per_second"].as_f64() > Some(0.0)
            )
        );
        assert_eq!(json["paths"].as_array().unwrap().len(), rails.split(',').count());
        // Whatever was cut, no access is missing: blocks of 100 bytes are whole, the warm-up is counted too.
        let latencies = json["latencies"].as_array().unwrap();
        let accesses = |longest: u64| -> u64 {
            let of_class = latencies.iter().filter(|row| row["longest"] == longest);
            of_class.map(|row| row["accesses"].as_u64().unwrap()).sum()
        };
        assert_eq!(accesses(4096), 2 * (1 + 3) * (5 + 1) * threads, "{latencies:?}");
        assert!(latencies.iter().all(|row| row["p50_us_at_most"].as_u64() <= row["p99_us_at_most"].as_u64()));
    }
}

#[test]
fn the_table_has_a_line_for_each_measurement() {
    let output = mr_bench(&["--sizes", "4K", "--batches", "1", "--iterations", "3"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn wrong_options_and_missing_targets_are_errors_with_a_reason() {
    assert_eq!(mr_bench(&["--sizes", "0"]).status.code(), Some(1));
    assert_eq!(mr_bench(&["--sizes", "1024M", "--batches", "99"]).status.code(), Some(1));
    let strange = mr_bench(&["--rails", "nothing"]);
    assert!(!strange.status.success());
    assert!(String::from_utf8_lossy(&strange.stderr).contains("opening the rails"));
}
