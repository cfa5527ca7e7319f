//! The log as users see it: what a healthy run prints at each level, which fall-backs show, and how wrong settings
//! appear.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A run keeps two cores busy, so runs are serialized.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn command(program: &str, line: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FI_")) {
        command.env_remove(name);
    }
    command.args(line).envs(environment.iter().copied());
    command
}

/// The lines that a command logs.
fn logged(mut command: Command) -> Vec<String> {
    let Output { status, stderr, .. } = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{stderr}");
    stderr.lines().filter(|line| line.starts_with("libfabric:")).map(str::to_owned).collect()
}

fn pingpong(provider: &str, level: &str, environment: &[(&str, &str)]) -> Command {
    pingpong_of("64,1M", provider, level, environment)
}

fn pingpong_of(sizes: &str, provider: &str, level: &str, environment: &[(&str, &str)]) -> Command {
    let line = ["--sizes", sizes, "--quick"];
    let more = [("FI_LOG_LEVEL", level), ("FI_PROVIDER", provider)];
    command(env!("CARGO_BIN_EXE_fi_pingpong"), &line, &[environment, &more].concat())
}

/// Fails unless some line has all of the words.
#[track_caller]
fn says(lines: &[String], words: &[&str]) {
    let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "no line with {words:?} in\n{}", lines.join("\n"));
}

#[test]
fn a_run_over_sockets_names_what_it_opened_chose_and_ended() {
    let _alone = alone();
    let off = [("FI_UDP_SHARED_MEMORY", "0")];
    let lines = logged(pingpong("udp", "debug", &off));
    says(&lines, &["<info>", "FI_UDP_SHARED_MEMORY=false", "is read from the environment"]);
    says(&lines, &["<info>", ":udp:", "the provider offers infos", "domains="]);
    says(
        &lines,
        &["<info>", ":udp:domain:", "opened a domain", "threading=FI_THREAD_", "progress=FI_PROGRESS_"],
    );
    says(
        &lines,
        &["<info>", ":udp:ep_ctrl:", "opened an endpoint", "FI_EP_RDM", "tx_size=", "rx_size=", "inject="],
    );
    says(&lines, &["<info>", ":udp:ep_ctrl:", "enabled an endpoint", "address=fi_sockaddr_in://"]);
    says(&lines, &["<info>", "opened a socket", "receives_by=", "sends_by=", "receive_buffer="]);
    says(&lines, &["<info>", "chose the path to a peer", "path=sockets", "why=", "shared memory is off"]);
    says(&lines, &["<info>", "a session has begun", "encryption=none", "peer=", "asked_by="]);
    says(&lines, &["<info>", "ends a session", "packet_size=", "rtt_us=", "lost="]);
    says(&lines, &["<debug>", ":cq:", "opened a completion queue", "wait="]);
    says(&lines, &["<debug>", ":av:", "inserted an address", "fi_sockaddr_in://"]);
    says(&lines, &["<debug>", "its counters: "]);
    says(&lines, &["<debug>", "chose the protocol of short messages to a peer", "protocol=eager", "up_to="]);
    says(
        &lines,
        &["<debug>", "chose the protocol of a message to a peer", "protocol=rendezvous", "len=1048576"],
    );

    let info = logged(pingpong("udp", "info", &off));
    assert!(info.len() < lines.len() && !info.is_empty(), "{} lines of {}", info.len(), lines.len());
    assert!(info.iter().all(|line| !line.contains("<debug>")), "{}", info.join("\n"));
    says(&info, &["chose the path to a peer"]);
    // The number of lines is that of decisions, not of messages.
    assert!(lines.len() < 400, "{} lines", lines.len());
    for level in ["warn", ""] {
        let quiet = logged(pingpong("udp", level, &off));
        assert!(quiet.is_empty(), "{}", quiet.join("\n"));
    }
}

#[test]
fn a_run_over_shared_memory_names_the_peer_and_the_copies() {
    let _alone = alone();
    let lines = logged(pingpong("shm", "debug", &[("FI_SHM_SINGLE_COPY", "always")]));
    says(&lines, &["<info>", ":shm:", "the provider offers infos"]);
    says(
        &lines,
        &["<info>", ":shm:ep_ctrl:", "opened shared memory", "address=fi_shm://", "single_copies=Always"],
    );
    says(
        &lines,
        &["<info>", ":shm:ep_ctrl:", "attached to a peer's shared memory", "peer=fi_shm://", "pid="],
    );
    says(&lines, &["<info>", ":shm:ep_data:", "CMA"]);
    says(&lines, &["<info>", "closes an endpoint"]);
    let quiet = logged(pingpong("shm", "warn", &[]));
    assert!(quiet.is_empty(), "{}", quiet.join("\n"));
}

#[test]
fn the_protocol_of_messages_over_shared_memory_and_a_full_ring_show() {
    let _alone = alone();
    let lines = logged(pingpong_of("4K,1M", "shm", "debug", &[]));
    says(
        &lines,
        &["<debug>", ":shm:ep_data:", "chose the protocol of short messages to a peer", "protocol=eager"],
    );
    says(&lines, &["<debug>", ":shm:ep_data:", "chose the protocol of a message to a peer", "len=1048576"]);
    says(
        &lines,
        &["<debug>", "the ring of commands to a peer is full", "peer=fi_shm://", "wanted=", "more="],
    );
    assert!(lines.len() < 400, "{} lines", lines.len());
}

#[test]
fn peers_of_one_host_are_reached_over_shared_memory_and_the_log_says_so() {
    let _alone = alone();
    let lines = logged(pingpong("udp", "info", &[]));
    says(&lines, &["chose the path to a peer", "path=shared memory", "why=it is on this host"]);
}

/// Makes the kernel refuse a system call of the command's processes with `EPERM`, as containers do.
fn without(mut command: Command, call: libc::c_long) -> Command {
    // SAFETY: between fork and exec `deny` makes system calls only.
    unsafe { command.pre_exec(move || deny(call)) };
    command
}

/// Makes the kernel refuse a system call of this process and its children (seccomp(2)).
fn deny(call: libc::c_long) -> std::io::Result<()> {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: numbers only.
    let privileges = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: a filter of as many statements as it says, which the kernel copies.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if privileges != 0 || filtered != 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn denied_single_copies_show() {
    let _alone = alone();
    let command = pingpong("shm", "info", &[("FI_SHM_SINGLE_COPY", "always")]);
    let lines = logged(without(command, libc::SYS_process_vm_readv));
    says(&lines, &["<info>", ":shm:ep_data:", "forbids single copies", "go through a ring"]);
}

#[test]
fn a_missing_io_uring_shows() {
    let _alone = alone();
    let command = pingpong("udp", "warn", &[("FI_UDP_DRIVER", "ring"), ("FI_UDP_SHARED_MEMORY", "0")]);
    let lines = logged(without(command, libc::SYS_io_uring_setup));
    says(&lines, &["<warn>", ":udp:ep_ctrl:", "io_uring is unavailable", "recvmmsg"]);
}

fn info_list(environment: &[(&str, &str)]) -> Vec<String> {
    logged(command(env!("CARGO_BIN_EXE_fi_info"), &["-l"], environment))
}

#[test]
fn wrong_settings_are_warned_of_with_what_is_wanted_and_used() {
    let lines = info_list(&[("FI_UDP_SEGMENTS", "banana")]);
    assert_eq!(lines.len(), 1, "{}", lines.join("\n"));
    says(
        &lines,
        &["<warn>", "FI_UDP_SEGMENTS=banana cannot be used", "one of 0, 1,", "the default (true) is used"],
    );
    let lines = info_list(&[("FI_LOG_LEVEL", "loud")]);
    says(&lines, &["<warn>", "FI_LOG_LEVEL=loud", "warn, trace, info, debug", "the default (warn) is used"]);
    let lines = info_list(&[("FI_LOG_SUBSYS", "endpoint")]);
    says(&lines, &["<warn>", "FI_LOG_SUBSYS names no subsystem endpoint", "core, fabric, domain"]);
    let lines = info_list(&[("FI_LOG_PROV", "upd")]);
    says(&lines, &["<warn>", "FI_LOG_PROV=upd", "no provider", "shm, ", ", udp"]);
    let lines = info_list(&[("FI_PROVIDER", "shm,upd")]);
    says(&lines, &["<warn>", "FI_PROVIDER=shm,upd", "upd", "shm, ", ", udp"]);
    let lines = info_list(&[("FI_PROVIDER_ALIAS", "tcp=upd,verbs")]);
    says(&lines, &["<warn>", "FI_PROVIDER_ALIAS", "tcp=upd", "upd", "shm, ", ", udp"]);
    says(&lines, &["<warn>", "FI_PROVIDER_ALIAS", "alias=provider", "verbs"]);
    let lines = info_list(&[("FI_UDP_SEGMETS", "0"), ("FI_LOG_LEVEL", "info")]);
    says(
        &lines,
        &["<info>", "FI_UDP_SEGMETS is set, and is no setting of this library", "fi_info -g FI_UDP_"],
    );
    let lines = info_list(&[("FI_UDP_SEGMENTS", "banana"), ("FI_LOG_LEVEL", "off")]);
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    assert!(info_list(&[]).is_empty());
}

/// The lines of `fi_info -l`, which may fail with such settings.
fn warned(environment: &[(&str, &str)]) -> Vec<String> {
    let output = command(env!("CARGO_BIN_EXE_fi_info"), &["-l"], environment).output().expect("the program");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    stderr.lines().filter(|line| line.starts_with("libfabric:")).map(str::to_owned).collect()
}

/// Invalid values of each kind, and words that the warning about each must contain.
fn wrong_values(setting: &ofi::config::Listed) -> Vec<(&'static str, &'static [&'static str])> {
    use ofi::config::ValueKind;
    match setting.kind {
        ValueKind::Boolean => {
            vec![("banana", &["one of 0, 1, false, true, no, yes, off, on"]), ("2", &["one of 0, 1"])]
        }
        ValueKind::Integer => vec![("banana", &["an integer of 64 bits"])],
        ValueKind::Size => {
            vec![("banana", &["a number such as 4096, 64K, 16M or 2G"]), ("-1", &["a number such as"])]
        }
        ValueKind::Time => vec![("banana", &["a time such as 20us, 1.5s or 2min", "ns, us, ms, s, min, h"])],
        ValueKind::Text => match setting.env.as_str() {
            "FI_LOG_LEVEL" => vec![("banana", &["one of warn, trace, info, debug"])],
            "FI_LOG_PROV" => vec![("banana", &["the names are ", "udp", "core"])],
            "FI_LOG_SUBSYS" => vec![("banana", &["the names are core, fabric, domain"])],
            "FI_LOG_LOCATION" => vec![("/nowhere/banana", &["/nowhere/banana", "stderr"])],
            "FI_PROVIDER" => vec![("banana", &["the names are ", "udp"])],
            "FI_PROVIDER_ALIAS" => {
                vec![("banana", &["alias=provider"]), ("tcp=banana", &["the names are ", "udp"])]
            }
            "FI_UDP_PORT_RANGE" => vec![("banana", &["LOW-HIGH"]), ("9-8", &["LOW-HIGH"])],
            "FI_VERBS_GID_IDX" => vec![("banana", &["0 to 255"]), ("256", &["0 to 255"])],
            // Names of devices, interfaces and folders, which come and go: the code that needs one reports it missing.
            "FI_EFA_IFACE"
            | "FI_PROVIDER_PATH"
            | "FI_TCP_IFACE"
            | "FI_TCP_TLS_CERT"
            | "FI_TCP_TLS_KEY"
            | "FI_TCP_TLS_CA"
            | "FI_TCP_TLS_NAME"
            | "FI_UDP_IFACE"
            | "FI_VERBS_DEVICE_NAME"
            | "FI_VERBS_IFACE" => Vec::new(),
            _ => vec![("banana", &["one of "])],
        },
    }
}

/// Every setting that there is, each wrong value in a run of its own.
#[test]
fn every_setting_with_a_wrong_value_is_warned_of_with_what_is_wanted() {
    let settings = ofi::config::list();
    assert!(settings.len() > 50, "{}", settings.len());
    // The first values of all settings together, and the second ones.
    let mut wrong: Vec<Vec<(String, &str, &[&str])>> = vec![Vec::new(), Vec::new()];
    for setting in &settings {
        for (index, (value, wanted)) in wrong_values(setting).into_iter().enumerate() {
            // The log's own settings, and those of providers, change which other lines there are.
            let apart = setting.env.starts_with("FI_LOG_") || setting.env.starts_with("FI_PROVIDER");
            let row = if apart { wrong.len() } else { index };
            if wrong.len() <= row {
                wrong.resize_with(row + 1, Vec::new);
            }
            wrong[row].push((setting.env.clone(), value, wanted));
        }
    }
    for run in wrong.iter().filter(|run| !run.is_empty()) {
        let environment: Vec<(&str, &str)> =
            run.iter().map(|(env, value, _)| (env.as_str(), *value)).collect();
        let lines = warned(&environment);
        for (env, value, wanted) in run {
            let words = [&["<warn>", env.as_str(), *value][..], *wanted].concat();
            says(&lines, &words);
        }
        assert!(lines.iter().all(|line| line.contains("<warn>")), "{}", lines.join("\n"));
    }
    // The warning about a value beyond the limits states the limits, as does that about a value that is no number.
    for value in ["1", "banana"] {
        let lines = warned(&[("FI_UDP_PEER_TIMEOUT_MS", value)]);
        says(
            &lines,
            &["<warn>", "FI_UDP_PEER_TIMEOUT_MS", value, "between 100 and 3600000", "the default (5000)"],
        );
    }
    let lines = warned(&[("FI_UDP_ENCRYPTION", "banana")]);
    says(&lines, &["<warn>", "FI_UDP_ENCRYPTION=banana", "one of auto, off, required", "are refused until"]);
}
