//! The programs, run in turn by a user without a camera.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let shm = PathBuf::from("/dev/shm");
        let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
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
    assert_eq!(details.matches("mxl-generate").count(), 2, "{details}");

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
