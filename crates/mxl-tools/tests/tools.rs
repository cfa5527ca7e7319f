//! The programs, run in turn by a user without a camera.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let shm = PathBuf::from("/dev/shm");
        Self::below(if shm.is_dir() { shm } else { std::env::temp_dir() }, name)
    }

    fn below(base: PathBuf, name: &str) -> Self {
        let path = base.join(format!("mxl-tools-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A writer that is killed at the end of the test.
struct Writing(Child);

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tool(name: &str, folder: &Folder, arguments: &[&str]) -> Output {
    let path = match name {
        "mxl-info" => env!("CARGO_BIN_EXE_mxl-info"),
        "mxl-view" => env!("CARGO_BIN_EXE_mxl-view"),
        _ => env!("CARGO_BIN_EXE_mxl-generate"),
    };
    Command::new(path).arg("-d").arg(&folder.0).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn generate(folder: &Folder, id: &str, arguments: &[&str]) -> Writing {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mxl-generate"));
    program.arg("-d").arg(&folder.0).args(["-f", id]).args(arguments);
    let child = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut child = Writing(child);
    // It prints the id when the flow exists.
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.0.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line.trim(), id);
    child
}

const PICTURE: &str = "0d9f1b3e-5a7c-4e21-8f00-000000000001";
const SOUND: &str = "0d9f1b3e-5a7c-4e21-8f00-000000000002";

#[test]
fn a_pattern_is_generated_listed_and_seen() {
    let folder = Folder::new("picture");
    let size = ["--width", "192", "--height", "108", "--rate", "25", "--alpha", "--slices", "27"];
    let writer = generate(&folder, PICTURE, &[&["video"][..], &size].concat());
    let listed = text(&tool("mxl-info", &folder, &["-l"]));
    assert!(
        listed.contains(PICTURE) && listed.contains("video/v210a 192x108p") && listed.contains("active"),
        "{listed}"
    );

    let file = folder.0.join("seen.png");
    let said =
        text(&tool("mxl-view", &folder, &["-f", PICTURE, "--wait", "20000", "-o", file.to_str().unwrap()]));
    assert!(said.contains("frame of 192x108"), "{said}");
    let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&file).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height, info.color_type), (192, 108, png::ColorType::Rgba));
    // Below the digits, on the red bar, unless the moving line is there.
    let red = |line: usize| {
        let pixel = &pixels[(line * 192 + 130) * 4..][..3];
        pixel.iter().zip([191_u8, 0, 0]).all(|(found, wanted)| found.abs_diff(wanted) <= 2)
    };
    assert!(red(100) || red(101), "{:?}", &pixels[(100 * 192 + 130) * 4..][..4]);

    let json: serde_json::Value =
        serde_json::from_str(&text(&tool("mxl-info", &folder, &["-f", PICTURE, "--json"]))).unwrap();
    assert_eq!((&json["active"], &json["ring"]), (&serde_json::json!(true), &serde_json::json!(5)));
    assert!(json["headIndex"].as_u64().unwrap() > 0 && json["maxSyncBatchSizeHint"] == 27, "{json}");
    let details = text(&tool("mxl-info", &folder, &["-f", PICTURE, "--watch", "1", "-n", "2"]));
    assert_eq!(details.matches("label  mxl-generate\n").count(), 2, "{details}");

    // A killed writer leaves its flow, which garbage collection removes.
    drop(writer);
    let listed = text(&tool("mxl-info", &folder, &[]));
    assert!(listed.contains("none"), "{listed}");
    assert_eq!(
        text(&tool("mxl-info", &folder, &["-g"])),
        "removed 1 flows without writers, 0 unfinished ones\n"
    );
    assert_eq!(text(&tool("mxl-info", &folder, &["--json"])).trim(), "[]");
}

/// Regression test: a label of another user cleared the screen, or showed a flow that does not exist.
#[test]
fn labels_and_descriptions_do_not_control_the_terminal() {
    let folder = Folder::new("terminal");
    let label = "camera\u{1b}[2J\u{9b}1m\u{202e}\nforged";
    let size = ["--width", "192", "--height", "108", "--rate", "25"];
    let _writer = generate(&folder, PICTURE, &[&["--label", label, "video"][..], &size].concat());
    let domain = serde_json::json!({ "id": "1", "label": label, "description": "\u{7}bell" });
    std::fs::write(folder.0.join("domain_def.json"), domain.to_string()).unwrap();
    let flow = folder.0.join(format!("{SOUND}.mxl-flow"));
    for file in ["data", "channels"] {
        // A broken flow, whose error is listed.
        std::fs::create_dir_all(&flow).unwrap();
        std::fs::write(flow.join(file), "\u{1b}").unwrap();
    }
    let info = tool("mxl-info", &folder, &[]);
    let details = tool("mxl-info", &folder, &["-f", PICTURE]);
    let json = tool("mxl-info", &folder, &["-f", PICTURE, "--json"]);
    for output in [&info, &details, &json] {
        let said = text(output) + &String::from_utf8_lossy(&output.stderr);
        let obeyed = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
        assert!(!said.contains(obeyed) && !said.contains("\nforged"), "{said:?}");
        assert!(said.contains("camera"), "{said}");
    }
    assert!(text(&info).contains(r"camera\u{1b}[2J\u{9b}1m\u{202e}\u{a}forged"), "{}", text(&info));
    assert!(text(&details).contains(r"\u{7}bell"), "{}", text(&details));
    let json: serde_json::Value = serde_json::from_str(&text(&json)).unwrap();
    assert_eq!(json["label"], label);
    // An error that quotes what is wrong.
    let definition = folder.0.join(format!("{PICTURE}.mxl-flow/flow_def.json"));
    let wrong = std::fs::read_to_string(&definition).unwrap().replace("video/v210", "\u{9b}31m");
    std::fs::write(&definition, wrong).unwrap();
    let refused = tool("mxl-view", &folder, &["-f", PICTURE]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(r"\u{9b}31m"), "{said:?}");
}

#[test]
fn a_tone_is_generated_and_its_level_shown() {
    let folder = Folder::new("sound");
    let _writer = generate(&folder, SOUND, &["audio", "--channels", "3", "--below", "6"]);
    // Time for enough batches to fill the span.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let said = text(&tool("mxl-view", &folder, &["-f", SOUND, "--wait", "20000", "--span", "10", "--json"]));
    let levels: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(levels.as_array().unwrap().len(), 3);
    let rms = levels[0]["rms"].as_f64().unwrap();
    assert!((rms + 9.0).abs() < 1.0, "a sine of -6 dB has -9: {said}");
    let bars = text(&tool("mxl-view", &folder, &["-f", SOUND]));
    assert_eq!(bars.lines().count(), 3, "{bars}");
    let file = folder.0.join("levels.svg");
    let said = text(&tool("mxl-view", &folder, &["-f", SOUND, "-o", file.to_str().unwrap()]));
    assert!(said.contains("levels of 3 channels"), "{said}");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert_eq!(svg.matches("#1A7F37").count(), 3, "{svg}");
}

#[test]
fn what_is_not_there_is_said() {
    let folder = Folder::new("nothing");
    for (name, arguments) in [("mxl-view", &["-f", PICTURE][..]), ("mxl-info", &["-f", PICTURE])] {
        let output = tool(name, &folder, arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(&format!("no flow {PICTURE}")), "{error}");
    }
    let output = tool("mxl-generate", &folder, &["video", "--width", "1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("not within"), "{output:?}");
    let output = tool("mxl-generate", &folder, &["video", "--interlaced", "--rate", "50"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("interlaced"), "{output:?}");
}

#[test]
fn a_mistyped_directory_is_not_created() {
    let folder = Folder::new("mistyped");
    let wrong = folder.0.join("stduio");
    let generate = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mxl-generate"));
        program.arg("-d").arg(&wrong).args(["-n", "1"]).args(arguments).output().unwrap()
    };
    let output = generate(&["video", "--width", "48", "--height", "8"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("stduio: no such directory"), "{error}");
    assert!(!wrong.exists());
    text(&generate(&["--create", "video", "--width", "48", "--height", "8"]));
    assert!(wrong.is_dir());
}

/// The programs without `-d`.
fn by_uri(name: &str, arguments: &[&str]) -> Output {
    let path =
        if name == "mxl-info" { env!("CARGO_BIN_EXE_mxl-info") } else { env!("CARGO_BIN_EXE_mxl-view") };
    Command::new(path).args(arguments).output().unwrap()
}

#[test]
fn flows_are_named_by_a_uri() {
    let folder = Folder::new("by uri");
    let _picture =
        generate(&folder, PICTURE, &["--label", "camera", "video", "--width", "48", "--height", "8"]);
    let _sound = generate(&folder, SOUND, &["--label", "camera", "audio"]);
    let path = folder.0.canonicalize().unwrap().display().to_string().replace(' ', "%20");
    let both = format!("mxl://{path}?id={PICTURE}&id={SOUND}");
    let one = format!("mxl://{path}?id={SOUND}");
    // The list names the group's flows together, and each flow by itself.
    let listed = text(&by_uri("mxl-info", &[&format!("mxl://{path}")]));
    assert!(listed.ends_with(&format!("\ncamera: {both}\n")), "{listed}");
    let shown = text(&by_uri("mxl-info", &[&one]));
    assert!(shown.contains(&format!("uri  {one}\n")) && shown.contains("groups  camera:Audio\n"), "{shown}");
    let shown = text(&by_uri("mxl-info", &[&both]));
    assert!(shown.contains(PICTURE) && shown.contains(SOUND), "{shown}");
    let json = |uri: &str| -> serde_json::Value {
        serde_json::from_str(&text(&by_uri("mxl-info", &[uri, "--json"]))).unwrap()
    };
    assert_eq!(
        (&json(&one)["uri"], &json(&one)["groups"][0]),
        (&one.as_str().into(), &"camera:Audio".into())
    );
    assert_eq!((&json(&both)[0]["id"], &json(&both)[1]["id"]), (&PICTURE.into(), &SOUND.into()));
    // It takes precedence over the options, as in the C++ SDK's program.
    let shown = text(&tool("mxl-info", &Folder::new("elsewhere"), &["-f", PICTURE, &one]));
    assert!(shown.contains(SOUND) && !shown.contains(PICTURE), "{shown}");
    let levels = text(&by_uri("mxl-view", &[&one, "--wait", "20000"]));
    assert_eq!(levels.lines().count(), 2, "{levels}");
    // What cannot be done is told.
    for (name, arguments, reason) in [
        ("mxl-info", &["mxl://host/dev/shm/mxl"][..], "the flows of host host cannot be shown from here"),
        ("mxl-info", &["http:///dev/shm/mxl"], "begins with mxl://"),
        ("mxl-info", &["mxl:///nonexistent"], "/nonexistent"),
        ("mxl-info", &[], "--domain"),
        ("mxl-view", &[&both], "names 2 flows"),
        ("mxl-view", &[&format!("mxl://{path}")], "no flow"),
    ] {
        let output = by_uri(name, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn the_definition_of_a_domain_is_shown() {
    let folder = Folder::new("defined");
    let file = folder.0.join("domain_def.json");
    let shown = |definition: &str| {
        std::fs::write(&file, definition).unwrap();
        tool("mxl-info", &folder, &[])
    };
    let said = text(&shown(r#"{"id": "7", "label": "Studio 1", "description": 5, "more": []}"#));
    assert!(said.starts_with("      domain\n          id  7\n       label  Studio 1\n"), "{said}");
    assert!(said.contains(" description  (not a text)\n\nflow "), "{said}");
    let said = text(&shown("{}"));
    assert_eq!(said.matches("(missing)").count(), 3, "{said}");
    // Before a collection too; not in what programs read.
    assert!(text(&tool("mxl-info", &folder, &["-g"])).contains("(missing)"));
    assert_eq!(text(&tool("mxl-info", &folder, &["--json"])).trim(), "[]");
    for broken in ["", "[]", "{\"id\": ", "\u{0}"] {
        let output = shown(broken);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("domain_def.json: a JSON object was wanted"),
            "{said}"
        );
    }
}

#[test]
fn a_domain_on_a_disk_is_used_with_a_warning() {
    let folder = Folder::below(PathBuf::from(env!("CARGO_TARGET_TMPDIR")), "disk");
    if mxl::is_tmpfs(&folder.0).unwrap() {
        println!("NOT RUN: a_domain_on_a_disk_is_used_with_a_warning: {} is a tmpfs", folder.0.display());
        return;
    }
    let warned = |output: &Output, name: &str| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let wanted = format!("{name}: {} is not on a tmpfs", folder.0.display());
        assert!(said.starts_with(&wanted) && said.lines().count() == 1, "{said}");
    };
    let output = tool("mxl-generate", &folder, &["-n", "2", "video", "--width", "48", "--height", "8"]);
    warned(&output, "mxl-generate");
    text(&output);
    let _writer = generate(&folder, SOUND, &["audio"]);
    let output = tool("mxl-info", &folder, &["--json"]);
    warned(&output, "mxl-info");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text(&output)).unwrap()[0]["id"], SOUND);
    let output = tool("mxl-view", &folder, &["-f", SOUND, "--wait", "20000"]);
    warned(&output, "mxl-view");
    assert_eq!(text(&output).lines().count(), 2);
    // None on a tmpfs.
    let memory = Folder::new("memory");
    if mxl::is_tmpfs(&memory.0).unwrap() {
        assert_eq!(tool("mxl-info", &memory, &[]).stderr, b"");
    }
}

#[test]
fn an_index_is_chosen_and_one_that_is_not_there_is_named() {
    let folder = Folder::new("index");
    let domain = mxl::Domain::open(&folder.0).unwrap();
    let camera = mxl::FlowDefinition::video("camera", 48, 4, mxl::Rational::new(50, 1)).unwrap();
    let pictures = domain.create_grains(&camera, &mxl::BatchHints::default()).unwrap().writer;
    (5..=7).for_each(|index| pictures.open(index).unwrap().commit().unwrap());
    let (id, file) = (camera.id.to_string(), folder.0.join("seen.png"));
    let view = |more: &[&str]| {
        tool("mxl-view", &folder, &[&["-f", &id, "--wait", "1", "-o", file.to_str().unwrap()], more].concat())
    };
    for (more, index) in [(&[][..], 7), (&["--index", "5"], 5), (&["-i", "6"], 6)] {
        let said = text(&view(more));
        assert!(said.starts_with(&format!("grain {index}: frame of 48x4")), "{said}");
    }
    let microphone = mxl::FlowDefinition::audio("microphone", 1, mxl::Rational::new(48_000, 1)).unwrap();
    let mut sound = domain.create_samples(&microphone, &mxl::BatchHints::default()).unwrap().writer;
    for (index, level) in [(480, 0.5_f32), (960, 1.0)] {
        let mut batch = sound.open(index, 480).unwrap();
        batch.write_channel(0, &[level; 480]).unwrap();
        batch.commit().unwrap();
    }
    let id = microphone.id.to_string();
    for (index, level) in [("480", -6.0), ("960", 0.0)] {
        let said = text(&tool("mxl-view", &folder, &["-f", &id, "--index", index, "--span", "10", "--json"]));
        let levels: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!((levels[0]["peak"].as_f64().unwrap() - level).abs() < 0.1, "{said}");
    }
    for (id, index) in [(&camera.id, "99"), (&microphone.id, "99999")] {
        let output = tool("mxl-view", &folder, &["-f", &id.to_string(), "-i", index, "--wait", "1"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let wanted = format!("index {index} is not written yet");
        assert!(!output.status.success() && said.contains(&wanted), "{said}");
    }
}

#[test]
fn fields_are_generated_late_and_under_a_label() {
    let folder = Folder::new("fields");
    let fields = ["video", "--width", "48", "--height", "8", "--rate", "25", "--interlaced"];
    let _writer =
        generate(&folder, PICTURE, &[&["--label", "studio 4", "--behind", "3"][..], &fields].concat());
    let said = text(&tool("mxl-view", &folder, &["-f", PICTURE, "--wait", "20000", "-o", "/dev/null"]));
    assert!(said.contains("field of 48x4"), "{said}");
    let report: serde_json::Value =
        serde_json::from_str(&text(&tool("mxl-info", &folder, &["-f", PICTURE, "--json"]))).unwrap();
    assert_eq!(report["label"], "studio 4");
    assert_eq!(report["rate"], serde_json::json!({ "numerator": 50, "denominator": 1 }));
    assert!(report["latency"].as_i64().unwrap() >= 3, "{report}");
}

#[test]
fn a_tone_has_the_frequency_and_the_batches_that_were_asked_for() {
    let folder = Folder::new("tone");
    let tone = ["audio", "--channels", "1", "--rate", "96000", "--hertz", "1000", "--batch", "96"];
    let _writer = generate(&folder, SOUND, &tone);
    let report: serde_json::Value =
        serde_json::from_str(&text(&tool("mxl-info", &folder, &["-f", SOUND, "--json"]))).unwrap();
    assert_eq!(
        (&report["maxCommitBatchSizeHint"], &report["rate"]["numerator"]),
        (&serde_json::json!(96), &serde_json::json!(96_000))
    );
    let reader = mxl::Domain::open(&folder.0).unwrap().read_samples(SOUND.parse().unwrap()).unwrap();
    let soon = mxl::Wait::For(std::time::Duration::from_secs(20));
    // Ten periods, written by ten batches; on a busy machine they may be overwritten before they are read.
    let mut samples = [0.0_f32; 960];
    let begin = std::time::Instant::now();
    loop {
        assert!(begin.elapsed().as_secs() < 40, "no samples");
        let Ok(read) = reader.read(reader.head() + 960, 960, soon) else { continue };
        if read.read_channel(0, &mut samples).is_ok() && read.still_valid() {
            break;
        }
    }
    let crossings = samples.windows(2).filter(|pair| (pair[0] < 0.0) != (pair[1] < 0.0)).count();
    assert!((19..=21).contains(&crossings), "{crossings} crossings of zero");
    for (wrong, why) in [(["--hertz", "0"], "must be above 0"), (["--batch", "0"], "--batch")] {
        let output = tool("mxl-generate", &folder, &[&["audio"], &wrong[..]].concat());
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
}

/// Runs a program with a terminal for its standard error. Returns its standard output, and what was drawn.
fn on_a_terminal(mut command: Command) -> (String, String) {
    use std::io::Read;
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let output = command.env("TERM", "xterm").stderr(terminal).output().unwrap();
    drop(command); // with it goes the last descriptor of the terminal, so reading ends
    let mut drawn = Vec::new();
    // Linux ends such a read with EIO.
    let _ = std::fs::File::from(master).read_to_end(&mut drawn);
    (text(&output), String::from_utf8_lossy(&drawn).into_owned())
}

#[test]
fn what_was_written_is_shown_on_a_terminal_unless_it_shall_be_quiet() {
    let folder = Folder::new("progress");
    let generate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mxl-generate"));
        command.arg("-d").arg(&folder.0).args(["-n", "12"]).args(arguments);
        command
    };
    let small = ["video", "--width", "96", "--height", "8", "--rate", "50"];
    let (said, drawn) = on_a_terminal(generate(&small));
    assert!(drawn.contains("0/12 grains") && said.lines().count() == 1, "{said} {drawn:?}");
    let (_, drawn) = on_a_terminal(generate(&["audio"]));
    assert!(drawn.contains("/12 batches"), "{drawn:?}");
    let (said, drawn) = on_a_terminal(generate(&[&["--quiet"], &small[..]].concat()));
    assert!(drawn.is_empty() && said.lines().count() == 1, "{said} {drawn:?}");
    let piped = generate(&small).output().unwrap();
    assert!(piped.stderr.is_empty() && piped.status.success(), "{piped:?}");
}
