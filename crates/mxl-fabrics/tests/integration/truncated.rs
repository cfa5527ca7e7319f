//! Flows whose files are truncated while they are sent or received: errors or lost grains, never a signal or a hang,
//! and no wrong data is published.

use std::time::{Duration, Instant};

use mxl::{BatchHints, Wait};
use mxl_fabrics::{Initiator, Options, Provider, Received, Target};

use super::common::{Folder, both, camera};

const ANY: (Option<&str>, Option<&str>) = (None, None);

fn truncate(folder: &Folder, flow: mxl::Uuid, name: &str) {
    let path = folder.path().join(format!("{flow}.mxl-flow")).join(name);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap();
}

fn payload(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (index * 31 + at * 7 + 1) as u8).collect()
}

/// Sends grain 1, truncates a file of the source or of the target, and sends until an end reports an error.
/// Returns its text.
fn until_said(provider: Provider, options: &Options, at_source: bool, name: &str) -> String {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut target = Target::open_with(&far.domain(), &definition, provider, ANY, None, options).unwrap();
    let mut initiator = Initiator::open_with(&near.domain(), definition.id, provider, ANY, options).unwrap();
    initiator.add(target.info()).unwrap();
    let reader = far.domain().read_grains(definition.id).unwrap();
    both(&mut initiator, &mut target, |_, received| received == Some(Received::Connected));
    let begin = Instant::now();
    for index in 1.. {
        if index == 5 {
            truncate(if at_source { &near } else { &far }, definition.id, name);
        }
        let written = writer.open(index).and_then(|mut grain| {
            let bytes = payload(index, grain.len());
            grain.write(0, &bytes)?;
            grain.commit()
        });
        // The writer of the source may notice it first.
        let sent = written.map_err(mxl_fabrics::Error::Flow).and_then(|()| initiator.send(index));
        if let Err(error) = sent {
            return error.to_string();
        }
        let last = Instant::now();
        loop {
            if let Err(error) = initiator.poll() {
                return error.to_string();
            }
            match target.poll() {
                Err(error) => return error.to_string(),
                Ok(Some(Received::Grain { index: there, invalid: false, .. })) => {
                    if let Ok(grain) = reader.read(there, Wait::Not)
                        && let Ok(bytes) = grain.to_vec()
                    {
                        assert_eq!(bytes, payload(there, bytes.len()), "{provider} {name}: grain {there}");
                    }
                    if there == index {
                        break;
                    }
                }
                Ok(_) => {}
            }
            if last.elapsed() > Duration::from_millis(100) {
                break;
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{provider} {name}: no end reports it");
    }
    unreachable!("the loop has no other end")
}

#[test]
fn a_truncated_source_or_target_is_told_by_name() {
    let mut by_messages = Options::default();
    by_messages.messages_only = true;
    for provider in [Provider::Shm, Provider::Tcp] {
        for options in [&Options::default(), &by_messages] {
            for (at_source, name) in
                [(true, "data"), (true, "grains/data.7"), (false, "data"), (false, "grains/data.7")]
            {
                let said = until_said(provider, options, at_source, name);
                let wanted = format!("{name} was truncated while it was in use");
                assert!(said.contains(&wanted), "{provider} {at_source} {name}: {said}");
            }
        }
    }
}
