//! Offloads of network devices for provider `udp`.

use super::check::Check;
use super::ethtool::{self, Feature};
use super::files::Files;

/// The kernel's name, and the name for `ethtool -K`.
const WANTED: [(&str, &str); 2] = [("tx-udp-segmentation", "tx-udp-segmentation"), ("rx-gro", "gro")];

/// Whether the interfaces that are up segment and coalesce batches of packets.
pub fn offloads(files: &Files) -> Check {
    const NAME: &str = "offloads";
    const EFFECT: &str =
        "a batch passes through the kernel as one packet, which the device segments or coalesces";
    let is_up = |name: &String| {
        name != "lo" && files.text(&format!("/sys/class/net/{name}/operstate")).as_deref() == Some("up")
    };
    let interfaces: Vec<String> = files.names("/sys/class/net").into_iter().filter(is_up).collect();
    if interfaces.is_empty() {
        return Check::unknown(NAME, EFFECT, "no interface to other hosts is up");
    }
    let (mut found, mut changes, mut seen) = (Vec::new(), Vec::new(), false);
    for name in interfaces {
        match ethtool::features(&name) {
            Ok(features) => {
                seen = true;
                let (says, off) = judge(&features);
                found.push(format!("{name}: {says}"));
                if !off.is_empty() {
                    changes.push(format!("ethtool -K {name} {}", off.join(" ")));
                }
            }
            Err(error) => found.push(format!("{name}: {error}")),
        }
    }
    let found = found.join("; ");
    match (seen, changes.is_empty()) {
        (false, _) => Check::unknown(NAME, EFFECT, found),
        (true, true) => Check::good(NAME, EFFECT, found),
        (true, false) => Check::lacking(NAME, EFFECT, found, changes.join("; ")),
    }
}

/// The description of a device, and the features to switch on.
fn judge(features: &[Feature]) -> (String, Vec<String>) {
    let (mut says, mut off) = (Vec::new(), Vec::new());
    for (name, switch) in WANTED {
        let state = match features.iter().find(|feature| feature.name == name) {
            Some(feature) if feature.active => "on",
            Some(feature) if feature.changeable => {
                off.push(format!("{switch} on"));
                "off"
            }
            // Then the kernel does it, at the cost of inspecting each packet.
            _ => "not of this device",
        };
        says.push(format!("{name} {state}"));
    }
    (says.join(", "), off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_and_can_be_on_is_to_be_changed() {
        let feature = |name: &str, active, changeable| Feature { name: name.into(), active, changeable };
        let (says, off) =
            judge(&[feature("tx-udp-segmentation", false, true), feature("rx-gro", true, true)]);
        assert_eq!(says, "tx-udp-segmentation off, rx-gro on");
        assert_eq!(off, ["tx-udp-segmentation on"]);
        let (says, off) = judge(&[feature("rx-gro", false, true)]);
        assert_eq!(
            (says.as_str(), &off[..]),
            ("tx-udp-segmentation not of this device, rx-gro off", &["gro on".to_string()][..])
        );
        assert!(
            judge(&[feature("tx-udp-segmentation", false, false), feature("rx-gro", true, false)])
                .1
                .is_empty()
        );
    }
}
