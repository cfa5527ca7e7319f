//! `fi_info` as used by scripts: output, exit codes, JSON.

use std::process::{Command, Output};

use serde_json::Value;

fn fi_info(line: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_info"));
    command.env_remove("FI_PROVIDER").args(line).output().expect("fi_info starts")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_short_form_has_six_lines_for_each_interface() {
    let output = fi_info(&["-p", "shm"]);
    assert_eq!(output.status.code(), Some(0));
    let text = text(&output);
    let keys: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).map(str::trim).collect();
    assert_eq!(keys[..6], ["provider", "fabric", "domain", "version", "type", "protocol"]);
    assert!(text.contains("    protocol: FI_PROTO_SHM\n"), "{text}");
}

#[test]
fn the_list_has_shm_and_its_version() {
    let output = fi_info(&["-l"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output).contains("shm:\n    version: "), "{}", text(&output));
    let names = json(&fi_info(&["--list", "--json"]));
    assert!(names["providers"].as_array().unwrap().iter().any(|provider| provider["name"] == "shm"));
}

#[test]
fn a_provider_that_is_filtered_out_is_not_listed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_info"));
    let output = command.env("FI_PROVIDER", "^shm").args(["-l", "-p", "shm"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output)), (Some(61), String::new()));
    assert_eq!(fi_info(&["-l", "-p", "nobody"]).status.code(), Some(61));
}

#[test]
fn every_attribute_is_shown_on_request() {
    let text = text(&fi_info(&["-v"]));
    assert!(text.starts_with("---\nfi_info:\n    caps: [ "), "{text}");
    assert!(text.contains("\n    fi_domain_attr:\n"), "{text}");
    assert_eq!(self::text(&fi_info(&["-i", "no such text"])), "");
}

#[test]
fn nothing_found_is_c_s_line_and_exit_code() {
    let output = fi_info(&["-c", "FI_MULTICAST", "-p", "shm"]);
    assert_eq!(output.status.code(), Some(61));
    assert!(errors(&output).starts_with("fi_getinfo: -61 ("), "{}", errors(&output));
    assert!(errors(&output).contains("--explain"));
}

#[test]
fn contradictory_hints_are_explained() {
    let line = ["-p", "shm", "-d", "nowhere", "-c", "FI_MSG|FI_MULTICAST", "--explain"];
    let output = fi_info(&line);
    assert_eq!(output.status.code(), Some(61));
    let text = text(&output);
    for part in [
        "refused: shm\n",
        "    field: domain_attr.name\n",
        "    wanted: nowhere\n",
        "    field: caps\n",
        "MULTICAST",
    ] {
        assert!(text.contains(part), "{part:?} is missing from\n{text}");
    }
    let output = fi_info(&[&line[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(61));
    let value = json(&output);
    assert_eq!(value["infos"], serde_json::json!([]));
    let refusals = value["refusals"].as_array().unwrap();
    assert!(
        refusals
            .iter()
            .any(|refusal| refusal["field"] == "domain_attr.name" && refusal["wanted"] == "nowhere")
    );
}

/// The output of `fi_info --explain -p NAME`, which begins with the refusals of the provider.
fn explained(name: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_info"));
    command.env_remove("FI_PROVIDER").args(["--explain", "-p", name]);
    command.envs(environment.iter().copied());
    let output = command.output().expect("fi_info starts");
    let text = text(&output);
    assert!(output.status.code() == Some(61) || text.contains(&format!("provider: {name}\n")), "{output:?}");
    text
}

#[test]
fn a_provider_that_is_not_built_in_names_its_feature() {
    for (name, built) in [("verbs", cfg!(feature = "verbs")), ("efa", cfg!(feature = "efa"))] {
        let text = explained(name, &[]);
        let refused = format!("refused: {name}\n    field: fabric_attr.prov_name\n    wanted: {name}\n");
        let feature = format!("without the cargo feature `{name}`; build it with --features {name}");
        assert_eq!(text.starts_with(&refused) && text.contains(&feature), !built, "{text}");
        let text = explained("udp", &[("FI_PROVIDER", &format!("udp,{name}"))]);
        assert_eq!(text.contains(&feature), !built, "{text}");
    }
}

/// On a host without devices, such as in CI, and with libraries that the loader cannot load.
#[test]
#[cfg(any(feature = "verbs", feature = "efa"))]
fn what_the_host_lacks_is_named() {
    let providers = [("verbs", cfg!(feature = "verbs")), ("efa", cfg!(feature = "efa"))];
    let broken = std::env::temp_dir().join(format!("fi-info-libraries-{}", std::process::id()));
    std::fs::create_dir_all(&broken).unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1", "libefa.so.1"] {
        std::fs::write(broken.join(library), "no library").unwrap();
    }
    for (name, _) in providers.into_iter().filter(|(_, built)| *built) {
        let text = explained(name, &[("LD_LIBRARY_PATH", broken.to_str().unwrap())]);
        for part in ["field: device\n", "cannot be opened: ", "install rdma-core", "Debian: libibverbs1"] {
            assert!(text.contains(part), "{part:?} is missing from\n{text}");
        }
        if !std::path::Path::new("/sys/class/infiniband").exists() {
            let text = explained(name, &[]);
            let has_advice = text.contains("load the module") || text.contains("is not installed: install");
            assert!(text.contains("field: device\n") && has_advice, "{text}");
        }
    }
    std::fs::remove_dir_all(broken).unwrap();
}

#[test]
fn json_has_every_attribute_under_c_s_names() {
    let value = json(&fi_info(&["--json", "-c", "FI_MSG|FI_RMA"]));
    let info = &value["infos"][0];
    assert!(info["caps"].as_array().unwrap().contains(&"FI_RMA".into()), "{info}");
    assert_eq!(info["ep_attr"]["type"], "FI_EP_RDM");
    assert!(info["tx_attr"]["inject_size"].is_u64());
    assert!(json(&fi_info(&["--json", "--version"]))["api"].is_string());
}

#[test]
fn settings_tell_type_help_and_value() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_info"));
    let set =
        command.args(["-e"]).env("FI_UNIVERSE_SIZE", "17").env("FI_LOG_LEVEL", "loud").output().unwrap();
    let text = text(&set);
    assert!(text.contains("# FI_UNIVERSE_SIZE: size_t\n# core: "), "{text}");
    assert!(text.contains("\nFI_UNIVERSE_SIZE=17\n\n"), "{text}");
    assert!(text.contains("# FI_LOG_LEVEL=loud cannot be used: "), "{text}");
    let some = json(&fi_info(&["-g", "fi_shm_", "--json"]));
    let settings = some["settings"].as_array().unwrap();
    assert!(!settings.is_empty() && settings.iter().all(|setting| setting["provider"] == "shm"), "{some}");
}

#[test]
fn wrong_calls_say_what_would_be_right() {
    let output = fi_info(&["-c", "FI_RAM"]);
    assert_eq!(output.status.code(), Some(22));
    assert!(errors(&output).contains("FI_RMA") && errors(&output).contains("FI_RAM"), "{}", errors(&output));
    let output = fi_info(&["--nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("Usage: fi_info"), "{}", errors(&output));
    assert_eq!(fi_info(&["-n", "a", "-s", "b"]).status.code(), Some(1));
    assert_eq!(fi_info(&["-h"]).status.code(), Some(0));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fi_info"));
    let mut child = command.arg("-v").stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
