//! The page, the flows as JSON, the metrics and the thumbnails of `mxl-gateway --http`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use mxl::Uuid;
use serde_json::Value;

use super::common::{Folder, LONG, camera, microphone};
use super::gateway::{Gateway, Writing, arrive, grains, mirror, serve, until};

/// The address of a gateway's page.
fn page_of(gateway: &Gateway) -> String {
    gateway.wait("shows its flows at http://");
    let said = gateway.said();
    let (_, rest) = said.split_once("http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

/// The status, the head and the body of an answer.
fn ask(at: &str, request: &str) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
        .write_all(format!("{request} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let body = answer.split_off(end + 4);
    let head = String::from_utf8(answer).unwrap();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head, body)
}

fn get(at: &str, path: &str) -> (u16, String, Vec<u8>) {
    ask(at, &format!("GET {path}"))
}

fn flows(at: &str) -> Value {
    let (status, _, body) = get(at, "/flows");
    assert_eq!(status, 200);
    serde_json::from_slice(&body).unwrap()
}

fn flow(at: &str, id: Uuid) -> Option<Value> {
    let flows = flows(at);
    flows["flows"].as_array().unwrap().iter().find(|flow| flow["id"] == id.to_string()).cloned()
}

#[test]
fn both_sides_show_a_flow_and_what_was_passed_on() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &["--http", "127.0.0.1:0"]);
    let uri = format!("mxl://{}/?id={}", serving.address(), picture.id);
    let mirroring = mirror(&far, &uri, &["--http", "127.0.0.1:0"]);
    arrive(&grains(&far, picture.id), 10);
    for (gateway, role) in [(&serving, "serve"), (&mirroring, "mirror")] {
        let at = page_of(gateway);
        let flow = until("a connected flow", || {
            flow(&at, picture.id)
                .filter(|flow| flow["state"] == "connected" && flow["forwarded"].as_u64() > Some(5))
        });
        assert_eq!(
            (&flow["label"], &flow["format"], &flow["unit"]),
            (&"camera".into(), &"video/v210".into(), &"grains".into())
        );
        let (forwarded, bytes) = (flow["forwarded"].as_u64().unwrap(), flow["bytes"].as_u64().unwrap());
        assert_eq!(bytes, forwarded * 192 / 48 * 128 * 40, "{flow}");
        // Its indices are those of 1970.
        assert_eq!(flow["late"], flow["forwarded"], "{flow}");
        assert_eq!(
            (&flow["reconnections"], flow["peers"].as_array().map(Vec::len)),
            (&0.into(), Some(1)),
            "{flow}"
        );
        assert!(flow["age_seconds"].as_f64().is_some_and(|age| age < LONG.as_secs_f64()), "{flow}");
        let (status, head, metrics) = get(&at, "/metrics");
        let metrics = String::from_utf8(metrics).unwrap();
        assert!(status == 200 && head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        assert!(
            metrics.contains(&format!("mxl_gateway_info{{role=\"{role}\",provider=\"tcp\"")),
            "{metrics}"
        );
        assert!(
            metrics.contains(&format!("mxl_gateway_connected{{flow=\"{}\"}} 1\n", picture.id)),
            "{metrics}"
        );
        let counted = metrics.lines().find_map(|line| {
            line.strip_prefix(&format!("mxl_gateway_forwarded_grains_total{{flow=\"{}\"}} ", picture.id))
        });
        assert!(counted.unwrap().parse::<u64>().unwrap() >= forwarded, "{metrics}");
    }
}

#[test]
fn a_flow_that_comes_back_counts_as_a_reconnection() {
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let address = serving.address();
    let mirroring = mirror(&far, &format!("mxl://{address}/?id={}", picture.id), &["--http", "127.0.0.1:0"]);
    let (there, at) = (grains(&far, picture.id), page_of(&mirroring));
    arrive(&there, 5);
    serving.running.kill();
    until("a flow that waits", || flow(&at, picture.id).filter(|flow| flow["state"] == "waiting"));
    let _serving = serve(&near, &address, &[]);
    arrive(&there, 5);
    let again = until("a flow that is back", || {
        flow(&at, picture.id).filter(|flow| flow["state"] == "connected" && flow["reconnections"] == 1)
    });
    assert!(again["forwarded"].as_u64() >= Some(10), "{again}");
}

#[test]
fn thumbnails_are_pictures_of_flows_that_are_offered() {
    let near = Folder::new();
    let (picture, sound, hidden) = (camera(), microphone(2), camera());
    let _writing = [&picture, &sound, &hidden].map(|definition| Writing::start(&near, definition));
    let ids = [picture.id.to_string(), sound.id.to_string()];
    let arguments = ["--allow", &ids[0], "--allow", &ids[1], "--http", "127.0.0.1:0"];
    let serving = serve(&near, "127.0.0.1:0", &arguments);
    let at = page_of(&serving);
    let listed: Vec<String> =
        flows(&at)["flows"].as_array().unwrap().iter().map(|flow| flow["id"].to_string()).collect();
    assert!(listed.len() == 2 && !listed.contains(&format!("\"{}\"", hidden.id)), "{listed:?}");
    let png = until("a picture", || {
        let (status, head, png) = get(&at, &format!("/thumbnails/{}.png", picture.id));
        (status == 200 && head.contains("Content-Type: image/png")).then_some(png)
    });
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (192, 40));
    for (id, why) in [(sound.id, "no video"), (hidden.id, "no such flow"), (Uuid::new_v4(), "no such flow")] {
        let (status, _, body) = get(&at, &format!("/thumbnails/{id}.png"));
        assert!(status == 404 && String::from_utf8_lossy(&body).contains(why), "{id}");
    }
}

#[test]
fn a_flow_that_is_not_offered_is_not_shown_to_those_who_follow_it() {
    let (near, far, picture, hidden) = (Folder::new(), Folder::new(), camera(), camera());
    let _writing = [&picture, &hidden].map(|definition| Writing::start(&near, definition));
    let arguments = ["--allow", &picture.id.to_string(), "--http", "127.0.0.1:0"];
    let serving = serve(&near, "127.0.0.1:0", &arguments);
    let at = page_of(&serving);
    let uri = format!("mxl://{}/?id={}&id={}", serving.address(), picture.id, hidden.id);
    let mirroring = mirror(&far, &uri, &[]);
    mirroring.wait(&format!("no flow {} is offered", hidden.id));
    // The mirror followed both before it had the one.
    until("a connected flow", || flow(&at, picture.id).filter(|flow| flow["state"] == "connected"));
    assert_eq!(flow(&at, hidden.id), None);
    assert!(!String::from_utf8(get(&at, "/metrics").2).unwrap().contains(&hidden.id.to_string()));
    assert_eq!(get(&at, &format!("/thumbnails/{}.png", hidden.id)).0, 404);
}

#[test]
fn other_requests_are_refused() {
    let near = Folder::new();
    let serving = serve(&near, "127.0.0.1:0", &["--http", "127.0.0.1:0"]);
    let at = page_of(&serving);
    let (status, head, page) = get(&at, "/");
    assert!(status == 200 && head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("<title>Media flows</title>"));
    // Nothing is loaded from elsewhere.
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
    for (request, wanted) in [
        ("GET /../etc/passwd", 404),
        ("GET /thumbnails/x.png", 404),
        ("POST /flows", 405),
        ("HEAD /flows", 200),
    ] {
        let (status, _, body) = ask(&at, request);
        assert_eq!((status, body.is_empty()), (wanted, request.starts_with("HEAD")), "{request}");
    }
}

/// A browser of this host without a screen.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium-headless-shell", "chromium", "google-chrome"];
    let mut candidates = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    candidates.find(|file| file.is_file())
}

#[test]
fn a_browser_shows_the_flows_live() {
    let Some(browser) = browser() else {
        println!(
            "NOT RUN: a_browser_shows_the_flows_live: no Chromium (apt-get install chromium-headless-shell)"
        );
        return;
    };
    let (near, far, picture) = (Folder::new(), Folder::new(), camera());
    let _writing = Writing::start(&near, &picture);
    let serving = serve(&near, "127.0.0.1:0", &[]);
    let uri = format!("mxl://{}/?id={}", serving.address(), picture.id);
    let mirroring = mirror(&far, &uri, &["--http", "127.0.0.1:0"]);
    arrive(&grains(&far, picture.id), 5);
    let (at, profile) = (page_of(&mirroring), Folder::new());
    let document = until("a page with a rate and a picture", || {
        let mut program = Command::new(&browser);
        program.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=600000",
            "--dump-dom",
        ]);
        program.arg(format!("--user-data-dir={}", profile.path().display())).arg(format!("http://{at}/"));
        let output = program.output().unwrap();
        let document = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{document}");
        let is_live =
            document.contains("<td data-column=\"picture\"") && document.contains("Newest picture of camera");
        let rate = document.split("data-column=\"rate\">").nth(1)?.split("/s").next()?.parse::<f64>().ok()?;
        (is_live && rate > 0.0).then_some(document)
    });
    for wanted in ["mirror of", "class=\"connected\">connected<", "B/s"] {
        assert!(document.contains(wanted), "{wanted}: {document}");
    }
}
