//! Target infos from elsewhere: of another provider, or with an address that no endpoint here can send to. They are
//! refused when they are added, by what is wrong, and disturb nothing.

use mxl_fabrics::{Error, PeerState, Provider, Received, Target, TargetInfo};

use super::common::{ANY, Ends, Folder, both};

/// The info under another id, so that it is a new target.
fn stranger(info: &TargetInfo) -> TargetInfo {
    TargetInfo { id: info.id ^ 0xff, ..info.clone() }
}

#[test]
fn infos_that_lead_nowhere_are_refused_by_their_reason() {
    for (provider, other) in [(Provider::Shm, Provider::Udp), (Provider::Udp, Provider::Shm)] {
        let Ends { near: _near, far: _far, definition, writer, mut target, mut initiator } =
            Ends::open(provider);
        let elsewhere = Folder::new();
        let foreign =
            Target::open(&elsewhere.domain(), &definition, other, ANY, None).unwrap().info().clone();
        let own = target.info().clone();
        let mut wrong = vec![
            ("another provider", foreign.clone(), "is reached over"),
            // What the C++ SDK writes for a target without an address.
            ("no format", TargetInfo { format: u32::MAX, ..stranger(&own) }, "format 4294967295"),
            (
                "the address of another provider",
                TargetInfo { format: foreign.format, address: foreign.address.clone(), ..stranger(&own) },
                "cannot be reached over",
            ),
        ];
        if provider == Provider::Udp {
            let cut = TargetInfo { address: own.address[..3].to_vec(), ..stranger(&own) };
            wrong.push(("an address that was cut", cut, "(3 bytes of format"));
            let mut nowhere = stranger(&own);
            nowhere.address[2..4].fill(0);
            wrong.push(("port 0", nowhere, "cannot be reached over"));
        }
        both(&mut initiator, &mut target, |_, received| received == Some(Received::Connected));
        for (what, info, why) in wrong {
            let Err(Error::Info(said)) = initiator.add(&info) else { panic!("{provider}: {what} was taken") };
            assert!(said.contains(why), "{provider}: {what}: {said}");
            if info.provider == provider {
                // Nor does it replace an info that leads to the target, however new it is.
                let mut newer = TargetInfo { id: own.id, ..info };
                newer.ours.as_mut().unwrap().epoch = u64::MAX;
                assert!(matches!(initiator.add(&newer), Err(Error::Info(_))), "{provider}: {what}");
            }
        }
        assert_eq!(initiator.targets().count(), 1, "{provider}");
        both(&mut initiator, &mut target, |initiator, _| {
            initiator.target(own.id).unwrap().0 == PeerState::Connected
        });
        writer.open(5).unwrap().commit().unwrap();
        initiator.send(5).unwrap();
        both(&mut initiator, &mut target, |_, received| {
            matches!(received, Some(Received::Grain { index: 5, invalid: false, .. }))
        });
        assert_eq!(initiator.target(own.id).unwrap().1.connected, 1, "{provider}");
    }
}
