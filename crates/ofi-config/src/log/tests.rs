use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::{debug, error, info, info_span, trace, warn};

use super::*;

/// A writer whose text the test can read.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `speak` under a logger and answers its lines.
fn lines(filter: Filter, speak: impl FnOnce()) -> Vec<String> {
    let captured = Captured::default();
    let logger = Logger::new(filter, Box::new(captured.clone()));
    tracing::subscriber::with_default(logger, speak);
    let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn filter(level: Level, providers: &str, subsystems: &str) -> Filter {
    Filter { level, providers: NameFilter::parse(providers), subsystems: NameFilter::parse(subsystems) }
}

/// Part of a line behind the time, which is the first part that is the same each run.
fn tail(line: &str) -> &str {
    line.splitn(4, ':').nth(3).unwrap()
}

#[test]
fn a_line_has_the_shape_that_c_gives_it() {
    let (got, at) = {
        let mut at = 0;
        let got = lines(Filter::level(Level::Warn), || {
            at = line!() + 1;
            warn!(target: "ofi::shm::ep_ctrl", peer = 7, name = "a b", "peer is {}", "gone");
        });
        (got, at)
    };
    assert_eq!(got.len(), 1);
    let mut parts = got[0].split(':');
    assert_eq!(parts.next(), Some("libfabric"));
    assert_eq!(parts.next(), Some(std::process::id().to_string().as_str()));
    assert!(parts.next().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
    assert_eq!(tail(&got[0]), format!(":shm:ep_ctrl:tests():{at}<warn> peer is gone peer=7 name=a b"));
}

#[test]
fn levels_are_matched_from_quiet_to_loud() {
    let speak = || {
        error!(target: "ofi::core::core", "e");
        warn!(target: "ofi::core::core", "w");
        info!(target: "ofi::core::core", "i");
        debug!(target: "ofi::core::core", "d");
        trace!(target: "ofi::core::core", "t");
    };
    let printed = |level| {
        let got = lines(Filter::level(level), speak);
        got.iter().map(|line| line.split_once('<').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(printed(Level::Warn), ["warn> e", "warn> w"]);
    assert_eq!(printed(Level::Trace), ["warn> e", "warn> w"]);
    assert_eq!(printed(Level::Info)[2..], ["info> i"]);
    assert_eq!(printed(Level::Debug)[3..], ["debug> d", "debug> t"]);
}

#[test]
fn providers_and_subsystems_are_filtered() {
    let speak = || {
        warn!(target: "ofi::shm::av", "1");
        warn!(target: "ofi::udp::av", "2");
        warn!(target: "ofi::shm::cq", "3");
        warn!(target: "ofi_shm::segment", "4");
    };
    let printed = |filter| {
        let got = lines(filter, speak);
        got.iter().map(|line| line.chars().next_back().unwrap()).collect::<String>()
    };
    assert_eq!(printed(filter(Level::Warn, "", "")), "1234");
    assert_eq!(printed(filter(Level::Warn, "shm", "")), "134");
    assert_eq!(printed(filter(Level::Warn, "^shm", "")), "2");
    assert_eq!(printed(filter(Level::Warn, "", "av")), "12");
    assert_eq!(printed(filter(Level::Warn, "SHM", "^av,core")), "3");
}

#[test]
fn fields_can_say_that_a_message_comes_from_elsewhere() {
    let speak = || {
        let provider = String::from("efa");
        warn!(
            target: "ofi::core::core",
            prov = provider.as_str(),
            subsys = "mr",
            func = "efa_mr_reg",
            line = 99,
            "message of a plug-in\n"
        );
    };
    let got = lines(filter(Level::Warn, "efa", "mr"), speak);
    assert_eq!(
        got.iter().map(|line| tail(line)).collect::<Vec<_>>(),
        [":efa:mr:efa_mr_reg():99<warn> message of a plug-in"]
    );
    assert!(lines(filter(Level::Warn, "core", ""), speak).is_empty());
}

#[test]
fn a_plug_ins_trace_is_quieter_than_info() {
    let speak = || {
        let c_level = Level::Trace as u64;
        info!(target: "ofi::core::core", prov = "efa", subsys = "cq", func = "f", line = 1, c_level, "traced");
        info!(target: "ofi::core::core", prov = "efa", subsys = "cq", func = "f", line = 2, "detail");
    };
    let printed = |level| {
        let got = lines(Filter::level(level), speak);
        got.iter().map(|line| line.split_once('<').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert!(printed(Level::Warn).is_empty());
    assert_eq!(printed(Level::Trace), ["trace> traced"]);
    assert_eq!(printed(Level::Info), ["trace> traced", "info> detail"]);
}

#[test]
fn a_question_before_an_event_is_answered_as_the_event_may_be() {
    let asked = |filter| {
        let logger = Logger::new(filter, Box::new(Captured::default()));
        tracing::subscriber::with_default(
            logger,
            || tracing::enabled!(target: "ofi::core::core", tracing::Level::INFO),
        )
    };
    assert!(asked(filter(Level::Info, "udp", "")));
    assert!(!asked(filter(Level::Warn, "", "")));
}

#[test]
fn other_libraries_and_spans_stay_out() {
    let got = lines(Filter::level(Level::Debug), || {
        let _entered = info_span!(target: "ofi::core::core", "span").entered();
        error!(target: "mio::poll", "not ours");
        error!(target: "office", "not ours");
        error!(target: "ofi_rdm::connection", "ours");
    });
    assert_eq!(got.len(), 1);
    assert!(tail(&got[0]).starts_with(":rdm:core:"));
}

#[test]
fn a_message_cannot_forge_a_line() {
    let got = lines(Filter::level(Level::Warn), || {
        let name = "x\nlibfabric:1:1::core:core:f():1<warn> all is well\x1b[2J";
        warn!(target: "ofi::core::av", peer = %name, "hello");
    });
    assert_eq!(got.len(), 1);
    assert!(got[0].contains("x\\nlibfabric:") && got[0].ends_with("\\u{1b}[2J"));
}

#[test]
fn a_level_is_a_word_or_a_number() {
    let of = |text: &str| requested_level(Some(OsStr::new(text)), Some(Level::Trace));
    assert_eq!(requested_level(None, None), None);
    assert_eq!(requested_level(None, Some(Level::Warn)), Some(Level::Warn));
    assert_eq!(of(""), Some(Level::Trace), "the default");
    assert_eq!(of("Info"), Some(Level::Info));
    assert_eq!(of("3"), Some(Level::Debug));
    assert_eq!(of(" trace "), Some(Level::Trace));
    assert_eq!(of("OFF"), None);
    assert_eq!(of("loud"), Some(Level::Warn));
    assert_eq!(of("17"), Some(Level::Warn));
}

#[test]
fn a_file_is_created_but_never_overwritten() {
    let dir = std::env::temp_dir().join(format!("ofi-log-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("log");
    let (mut writer, trouble) = location::open(file.to_str().unwrap(), 0o600);
    assert_eq!(trouble, None);
    writer.write_all(b"line\n").unwrap();
    let (_, trouble) = location::open(file.to_str().unwrap(), 0o600);
    assert!(trouble.unwrap().contains("cannot be used"));
    let (_, trouble) = location::open(dir.to_str().unwrap(), 0o600);
    assert_eq!(trouble, None);
    assert!(dir.join(format!("ofi_{}.log", std::process::id())).exists());
    assert_eq!(std::fs::read(&file).unwrap(), b"line\n");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn subsystems_have_the_numbers_of_the_c_header() {
    assert_eq!(SUBSYSTEMS.iter().position(|&name| name == "mr"), Some(8));
    assert_eq!(Level::from_c(2), Some(Level::Info));
    assert_eq!(Level::from_c(4), None);
}

/// What [`init_from_env`] does in a process of its own: run by the tests below, with their environment.
#[test]
#[ignore = "runs as a child of other tests"]
fn child() {
    static SLOTS: config::Setting<usize> = config::Setting::new("log_test", "slots", 4, "Slots");
    static SETTINGS: &[&dyn config::AnySetting] = &[&SLOTS];
    config::register(SETTINGS);
    if std::env::var_os("OFI_TEST_HAS_SUBSCRIBER").is_some() {
        tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::default()).unwrap();
    }
    if std::env::var_os("OFI_TEST_TAKES_LOG").is_some() {
        println!("taken: {}", take_over(Arc::new(Told)));
        warn!(target: "ofi::shm::cq", "for the program");
        info!(target: "ofi::shm::cq", "not wanted");
        give_back();
    }
    let started = init_from_env();
    warn!(target: "ofi::shm::cq", "spoken after {started:?}");
    println!("slots {}", SLOTS.get());
}

/// A program's log that wants warnings, and whose functions say something themselves.
struct Told;

impl Sink for Told {
    fn enabled(&self, _: &str, _: &str, level: Level) -> Option<bool> {
        warn!(target: "ofi::shm::cq", "said while it is asked");
        Some(level == Level::Warn)
    }

    fn log(&self, entry: &Entry) -> bool {
        println!("told: {}:{}:{}", entry.provider, entry.subsystem, entry.text);
        warn!(target: "ofi::shm::cq", "said while it is told");
        true
    }
}

/// Standard output and standard error of [`child`].
fn run_child(environment: &[(&str, &str)]) -> (String, String) {
    let child = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(child);
    command.args(["--exact", "log::tests::child", "--ignored", "--nocapture"]);
    for name in ["FI_LOG_LEVEL", "FI_LOG_PROV", "FI_LOG_SUBSYS", "FI_LOG_LOCATION"] {
        command.env_remove(name);
    }
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success());
    (text(output.stdout), text(output.stderr))
}

#[test]
fn without_a_level_warnings_are_printed() {
    let (_, stderr) = run_child(&[("FI_LOG_TEST_SLOTS", "many")]);
    assert_eq!(libfabric(&stderr).len(), 3, "{stderr}");
    let (_, stderr) = run_child(&[("FI_LOG_TEST_SLOTS", "many"), ("FI_LOG_LEVEL", "off")]);
    assert!(!stderr.contains("libfabric:"), "{stderr}");
}

#[test]
fn settings_that_cannot_be_used_come_first() {
    let (stdout, stderr) = run_child(&[("FI_LOG_LEVEL", "loud"), ("FI_LOG_TEST_SLOTS", "many")]);
    let lines = libfabric(&stderr);
    assert_eq!(lines.len(), 4, "{stderr}");
    let expected = "FI_LOG_LEVEL=loud cannot be used: it must be one of warn, trace, info, debug, 0, 1, 2, 3, off; \
                    the default (warn) is used instead";
    assert!(lines[..2].iter().any(|line| line.ends_with(expected)), "{stderr}");
    let expected = "FI_LOG_TEST_SLOTS=many cannot be used: it must be a number such as 4096, 64K, 16M or 2G; \
                    the default (4) is used instead";
    assert!(lines[..2].iter().any(|line| line.ends_with(expected)), "{stderr}");
    assert!(tail(lines[2]).starts_with(":shm:cq:tests():") && lines[2].ends_with("spoken after Logging"));
    // And where the setting is read.
    assert!(tail(lines[3]).starts_with(":log_test:core:") && lines[3].ends_with(expected), "{stderr}");
    assert!(stdout.contains("slots 4"), "{stdout}");
}

#[test]
fn a_subsystem_that_does_not_exist_is_answered_with_the_names() {
    let (_, stderr) = run_child(&[("FI_LOG_SUBSYS", "^cq,ep")]);
    let expected = "FI_LOG_SUBSYS names no subsystem ep: the names are core, fabric, domain, ep_ctrl";
    assert!(libfabric(&stderr).iter().any(|line| line.contains(expected)), "{stderr}");
}

#[test]
fn a_filter_of_wrong_names_does_not_hide_the_warning_about_it() {
    let wrong = [("FI_LOG_SUBSYS", "cqq"), ("FI_LOG_PROV", "udp"), ("FI_LOG_TEST_SLOTS", "many")];
    let (_, stderr) = run_child(&wrong);
    let lines = libfabric(&stderr);
    assert!(lines.iter().any(|line| line.contains("names no subsystem cqq")), "{stderr}");
    assert!(lines.iter().any(|line| line.contains("FI_LOG_TEST_SLOTS=many cannot be used")), "{stderr}");
    assert!(!stderr.contains("spoken after"), "{stderr}");
}

#[test]
fn settings_that_are_set_are_told_at_info() {
    let environment = [("FI_LOG_LEVEL", "info"), ("FI_LOG_TEST_SLOTS", "7")];
    let (_, stderr) = run_child(&environment);
    let expected = "FI_LOG_TEST_SLOTS=7 is read from the environment, in place of the default (4)";
    let lines = libfabric(&stderr);
    let found = lines.iter().find(|line| line.ends_with(expected)).unwrap_or_else(|| panic!("{stderr}"));
    assert!(found.contains(":log_test:core:") && found.contains("<info>"), "{found}");
}

/// The lines of our log.
fn libfabric(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("libfabric:")).collect()
}

#[test]
fn a_subscriber_of_the_program_stays() {
    let (_, stderr) = run_child(&[("FI_LOG_LEVEL", "debug"), ("OFI_TEST_HAS_SUBSCRIBER", "1")]);
    assert!(!stderr.contains("libfabric:"), "{stderr}");
}

#[test]
fn a_program_takes_the_log_and_gives_it_back() {
    let told = |stdout: &str| stdout.lines().filter(|line| line.contains("told: ")).count();
    let (stdout, stderr) = run_child(&[("OFI_TEST_TAKES_LOG", "1")]);
    assert!(stdout.contains("taken: true") && stdout.contains("told: shm:cq:for the program"), "{stdout}");
    assert_eq!(told(&stdout), 1, "{stdout}");
    assert_eq!(libfabric(&stderr).len(), 1, "what is said after it was given back: {stderr}");

    let (stdout, stderr) = run_child(&[("OFI_TEST_TAKES_LOG", "1"), ("FI_LOG_LEVEL", "warn")]);
    assert_eq!(told(&stdout), 1, "{stdout}");
    let lines: Vec<_> = stderr.lines().filter(|line| line.starts_with("libfabric:")).collect();
    assert!(lines.len() == 1 && lines[0].ends_with("spoken after Taken"), "{stderr}");
}

#[test]
fn the_log_of_a_program_with_a_subscriber_is_not_taken() {
    let (stdout, _) = run_child(&[("OFI_TEST_TAKES_LOG", "1"), ("OFI_TEST_HAS_SUBSCRIBER", "1")]);
    assert!(stdout.contains("taken: false") && !stdout.contains("told: "), "{stdout}");
}
