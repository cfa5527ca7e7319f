//! A domain on a disk: it works, and the log warns of it.

use std::fmt::{Debug, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};

use mxl::{BatchHints, Domain, Wait};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::common::{Folder, camera, microphone, picture};

/// Keeps warnings and errors, one line for each.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

/// Opens a domain. Returns it with what was logged.
fn open(path: &Path) -> (Domain, Vec<String>) {
    let log = Log::default();
    let domain = tracing::subscriber::with_default(log.clone(), || Domain::open(path).unwrap());
    let lines = std::mem::take(&mut *log.0.lock().unwrap());
    (domain, lines)
}

#[test]
fn a_directory_that_is_no_tmpfs_is_warned_of_by_its_path() {
    let (_, lines) = open(Path::new("/proc"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        ["WARN", "domain=/proc", "not on a tmpfs"].iter().all(|part| lines[0].contains(part)),
        "{lines:?}"
    );
    if mxl::is_tmpfs("/dev/shm").is_ok_and(|is| is) {
        let folder = Folder::below(Path::new("/dev/shm"));
        assert_eq!(open(folder.path()).1, Vec::<String>::new());
    }
}

#[test]
fn flows_on_a_disk_are_written_and_read() {
    let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")));
    if mxl::is_tmpfs(folder.path()).unwrap() {
        println!("NOT RUN: flows_on_a_disk_are_written_and_read: {} is a tmpfs", folder.path().display());
        return;
    }
    let (domain, lines) = open(folder.path());
    assert_eq!(lines.len(), 1, "{lines:?}");
    let (camera, sound) = (camera(), microphone(2));
    let pictures = domain.create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let mut samples = domain.create_samples(&sound, &BatchHints::default()).unwrap().writer;
    let (seen, heard) = (domain.read_grains(camera.id).unwrap(), domain.read_samples(sound.id).unwrap());
    for index in 1..25 {
        let mut grain = pictures.open(index).unwrap();
        grain.write(0, &picture(index, grain.len())).unwrap();
        grain.commit().unwrap();
        assert_eq!(seen.read(index, Wait::Not).unwrap().to_vec().unwrap(), picture(index, 512));
        let mut batch = samples.open(index * 480, 480).unwrap();
        batch.write_channel(1, &[index as f32; 480]).unwrap();
        batch.commit().unwrap();
        let mut there = [0.0_f32; 480];
        heard.read(index * 480, 480, Wait::Not).unwrap().read_channel(1, &mut there).unwrap();
        assert!(there.iter().all(|&sample| sample == index as f32), "batch {index}");
    }
    drop((pictures, samples));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
