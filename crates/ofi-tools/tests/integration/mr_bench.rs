//! `mr-bench` with its own target, in both directions, with every byte compared.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cuda_emulator as _; // built as a library that takes the place of the driver
use ofi_testkit::etcd::Server;

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
    for (rails, memory) in [("shm", "--memory=library"), ("shm", "--threads=2"), ("udp,udp", "--threads=1")] {
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
        // Every access is counted, those of the warm-up too. Blocks of 100 bytes are never split.
        let latencies = json["latencies"].as_array().unwrap();
        let accesses = |longest: u64| -> u64 {
            let of_class = latencies.iter().filter(|row| row["longest"] == longest);
            of_class.map(|row| row["accesses"].as_u64().unwrap()).sum()
        };
        assert_eq!(accesses(4096), 2 * (1 + 3) * (5 + 1) * threads, "{latencies:?}");
        assert!(latencies.iter().all(|row| row["p50_us_at_most"].as_u64() <= row["p99_us_at_most"].as_u64()));
    }
}

/// A folder with the emulator as `libcuda.so.1`.
fn emulator() -> std::path::PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_mr-bench")).parent().unwrap();
    let found = ["libcuda_emulator.so", "deps/libcuda_emulator.so"].map(|name| beside.join(name));
    let found =
        found.into_iter().find(|path| path.exists()).expect("libcuda_emulator.so is beside this program");
    let folder = std::env::temp_dir().join(format!("mr-bench-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join("libcuda.so.1");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(found, link).unwrap();
    folder
}

/// Each kind of memory at either end; device memory is emulated.
#[test]
fn memory_of_each_kind_at_either_end_is_moved() {
    let folder = emulator();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mr-bench"));
        let command = command.env("LD_LIBRARY_PATH", &folder).env("CUDA_EMULATOR_DEVICES", "2");
        let common = ["--check", "--json", "--iterations", "3", "--warmup", "1", "--sizes", "100,3M"];
        command.args(common).args(arguments).args(["--batches", "2"]).output().expect("mr-bench runs")
    };
    for (ours, theirs) in [("cuda", "host"), ("library", "cuda"), ("cuda", "cuda:1"), ("cuda:0", "library")] {
        let output = run(&["--memory", ours, "--target-memory", theirs]);
        assert!(output.status.success(), "{ours} {theirs}: {}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let full = |kind: &str| if kind == "cuda" { "cuda:0".to_string() } else { kind.to_string() };
        assert_eq!((&json["memory"], &json["target_memory"]), (&full(ours).into(), &full(theirs).into()));
        assert_eq!(json["rows"].as_array().unwrap().len(), 2 * 2, "{ours} {theirs}");
    }
    // A single kind applies to both ends.
    let json: serde_json::Value = serde_json::from_slice(&run(&["--memory", "cuda:1"]).stdout).expect("JSON");
    assert_eq!(json["target_memory"], "cuda:1");
    // A device that does not exist.
    let output = run(&["--memory", "cuda:7"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("CUDA"), "{output:?}");
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn several_initiators_and_several_targets_work_at_once() {
    // The number of initiating agents in three pairs.
    for (scheme, agents) in [("pairwise", 3), ("one-to-many", 1), ("many-to-one", 3)] {
        let json = rows(&[
            "--rails",
            "udp",
            "--sizes",
            "100,64K",
            "--batches",
            "2",
            "--scheme",
            scheme,
            "--pairs",
            "3",
        ]);
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * 2, "{scheme}");
        assert!(rows.iter().all(|row| row["transfers"] == 3 * 5), "{scheme}: {rows:?}");
        let pairs: Vec<_> = json["paths"].as_array().unwrap().iter().map(|path| &path["pair"]).collect();
        assert_eq!(pairs, [0, 1, 2], "{scheme}");
        let mut seen: Vec<_> =
            json["latencies"].as_array().unwrap().iter().map(|row| row["agent"].as_u64()).collect();
        seen.dedup();
        assert_eq!(seen.len(), agents, "{scheme}");
    }
}

#[test]
fn targets_and_initiators_meet_in_etcd() {
    let Some(server) = Server::start("targets_and_initiators_meet_in_etcd") else { return };
    let url = server.url();
    let meet = ["--etcd", &url, "--group", "two"];
    let target = |address: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mr-bench"));
        program
            .args(["--listen", address])
            .args(meet)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let targets = [target("127.0.0.1:0"), target("127.0.0.1:0")];
    let of_another_run = mr_bench(&["--listen", "0.0.0.0:0", "--etcd", &url]);
    assert_eq!(of_another_run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&of_another_run.stderr).contains("an address that initiators can reach"));
    let nameless = mr_bench(&["--etcd", &url, "--etcd-user", "bench"]);
    assert_eq!(nameless.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nameless.stderr).contains("MR_BENCH_ETCD_PASSWORD"));
    let json =
        rows(&[&meet[..], &["--pairs", "2", "--sizes", "64K", "--batches", "2", "--ways", "write"]].concat());
    assert_eq!(json["pairs"], 2);
    for target in targets {
        let output = target.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // Targets that work with an initiator or have ended are no longer listed.
    assert!(!server.ask("kv/range", r#"{"key":"Lw==","range_end":"MA=="}"#).contains("kvs"));
}

/// A probe of a load balancer or a kubelet connects and closes.
#[test]
fn a_connection_that_says_nothing_does_not_end_a_target() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mr-bench"));
    command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut target = command.spawn().unwrap();
    let mut address = String::new();
    BufReader::new(target.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
    for _ in 0..3 {
        drop(TcpStream::connect(address.trim()).unwrap());
    }
    let json = rows(&["--sizes", "64K", "--batches", "1", address.trim()]);
    assert_eq!(json["rows"].as_array().unwrap().len(), 2, "{json}");
    let output = target.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn targets_elsewhere_are_named_and_counted() {
    let refused = |arguments: &[&str]| {
        let output = mr_bench(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(
        refused(&["--pairs", "3", "a:1", "b:2"]).contains("--pairs 3 needs as many addresses; 2 are given")
    );
    assert!(refused(&["--scheme", "many-to-one", "a:1", "b:2"]).contains("many-to-one has one target"));
    refused(&["--pairs", "65"]);
}

#[test]
fn the_table_has_a_line_for_each_measurement() {
    let output = mr_bench(&["--sizes", "4K", "--batches", "1", "--iterations", "3"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn blocks_of_4_kib_to_64_mib_are_measured_and_plotted_and_no_bar_is_drawn_in_a_pipe() {
    let file = std::env::temp_dir().join(format!("mr-bench-{}.svg", std::process::id()));
    let sizes = ["--sizes", "4K,1M,64M", "--batches", "1", "--iterations", "2", "--svg"];
    let output = mr_bench(&[&sizes[..], &[file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for way in ["write", "read"] {
        let of_way = text.lines().filter(|line| line.starts_with(way));
        let sizes: Vec<_> = of_way.map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(sizes, ["4096", "1048576", "67108864"], "{text}");
    }
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    // Three points of two lines in two panels.
    assert_eq!(svg.matches("<circle").count(), 12, "{svg}");
}

#[test]
fn a_bar_is_drawn_on_a_terminal() {
    use std::io::Read;
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mr-bench"));
    command.args(["--sizes", "4K", "--batches", "1", "--iterations", "3"]).env("TERM", "xterm");
    let output = command.stderr(terminal).output().unwrap();
    drop(command); // closes the last descriptor of the terminal, so that reading ends
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 3);
    let mut drawn = Vec::new();
    // On Linux such a read ends with EIO.
    let _ = std::fs::File::from(master).read_to_end(&mut drawn);
    let drawn = String::from_utf8_lossy(&drawn);
    assert!(drawn.contains("0/2 Write, 1 x 4096 bytes") && drawn.contains("1/2 Read"), "{drawn:?}");
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_before_anything_is_measured() {
    let output = mr_bench(&["--svg", "/nonexistent/plot.svg"]);
    assert!(!output.status.success());
    assert_eq!(output.stdout, b"");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("writing the plot to /nonexistent/plot.svg"), "{why}");
}

#[test]
fn a_run_that_fails_leaves_no_empty_plot_and_an_older_one_as_it_was() {
    let file = std::env::temp_dir().join(format!("mr-bench-failed-{}.svg", std::process::id()));
    let run = || mr_bench(&["--rails", "nothing", "--svg", file.to_str().unwrap()]);
    assert!(!run().status.success());
    assert!(!file.exists());
    for older in ["an older plot", ""] {
        std::fs::write(&file, older).unwrap();
        assert!(!run().status.success());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), older);
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_run_that_is_killed_leaves_no_empty_plot() {
    use std::io::{BufRead, BufReader};
    let file = std::env::temp_dir().join(format!("mr-bench-killed-{}.svg", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_mr-bench"));
    // Eight rows of 2 GiB each are still to come when the first one is printed.
    command.args(["--sizes", "4K,1M,16M", "--batches", "1,2", "--iterations", "30000", "--svg"]).arg(&file);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut heading = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut heading).unwrap();
    child.kill().unwrap();
    let ended = child.wait().unwrap();
    assert!(!heading.is_empty() && ended.code().is_none(), "{heading:?}, {ended}");
    assert!(!file.exists());
}

#[test]
fn wrong_options_and_missing_targets_are_errors_with_a_reason() {
    assert_eq!(mr_bench(&["--sizes", "0"]).status.code(), Some(1));
    assert_eq!(mr_bench(&["--sizes", "1024M", "--batches", "99"]).status.code(), Some(1));
    let strange = mr_bench(&["--rails", "nothing"]);
    assert!(!strange.status.success());
    assert!(String::from_utf8_lossy(&strange.stderr).contains("opening the rails"));
}
