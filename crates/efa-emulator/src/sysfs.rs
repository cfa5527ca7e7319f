//! The files by which libraries find devices, in a folder that takes the place of /sys (`SYSFS_PATH`).

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

use crate::formats::Gid;

/// A device's name.
fn name(index: usize) -> String {
    format!("efa_emu{index}")
}

/// A device's file in /dev/infiniband.
pub fn file(index: usize) -> String {
    format!("uverbs{index}")
}

/// Writes the tree for devices with these addresses. Returns its path.
///
/// # Errors
/// The errors of creating files.
pub fn write(dir: &Path, gids: &[Gid]) -> Result<PathBuf> {
    let root = dir.join(format!("sysfs.{}", std::process::id()));
    let _ = fs::remove_dir_all(&root); // left by an earlier program of this process
    for (index, gid) in gids.iter().enumerate() {
        add(&root, index, gid)?;
    }
    fs::write(root.join("class/infiniband_verbs/abi_version"), "6\n")?;
    Ok(root)
}

fn add(root: &Path, index: usize, gid: &Gid) -> Result<()> {
    let (name, file) = (name(index), file(index));
    let (verbs, device) =
        (root.join("class/infiniband_verbs").join(&file), root.join("class/infiniband").join(&name));
    let place = format!("devices/pci0000:00/0000:00:{:02x}.0", 0x1f - index);
    let [driver, function] = [root.join("bus/pci/drivers/efa"), root.join(&place)];
    for folder in [
        verbs.clone(),
        device.join("ports/1/gids"),
        device.join("ports/1/gid_attrs/types"),
        device.join("ports/1/pkeys"),
        driver,
        function.clone(),
    ] {
        fs::create_dir_all(folder)?;
    }
    let words: Vec<String> = gid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    let alias = format!("pci:v{:08X}d{:08X}sv00001D0Fsd0000EFA2bc02sc00i00", crate::VENDOR, crate::PART);
    for (at, text) in [
        (verbs.join("ibdev"), name.clone()),
        // The number of /dev/null, which replaces the device's file.
        (verbs.join("dev"), "1:3".into()),
        (verbs.join("abi_version"), "1".into()),
        (device.join("node_type"), "7: <unknown>".into()),
        (device.join("node_guid"), words[4..].join(":")),
        (device.join("sys_image_guid"), words[4..].join(":")),
        (device.join("fw_ver"), "0.0.0.0".into()),
        (device.join("hw_rev"), "efa2".into()),
        (device.join("ports/1/gids/0"), words.join(":")),
        (device.join("ports/1/gid_attrs/types/0"), "IB/RoCE v1".into()),
        (device.join("ports/1/pkeys/0"), "0xffff".into()),
        (device.join("ports/1/state"), "4: ACTIVE".into()),
        (device.join("ports/1/link_layer"), "Unspecified".into()),
        (function.join("modalias"), alias),
        (function.join("vendor"), format!("{:#06x}", crate::VENDOR)),
        (function.join("device"), format!("{:#06x}", crate::PART)),
        (function.join("subsystem_vendor"), format!("{:#06x}", crate::VENDOR)),
        (function.join("subsystem_device"), format!("{:#06x}", crate::PART)),
        (function.join("revision"), "0x00".into()),
        (function.join("class"), "0x020000".into()),
        (function.join("numa_node"), "-1".into()),
        (function.join("local_cpus"), "ff".into()),
    ] {
        fs::write(at, text + "\n")?;
    }
    let link = std::os::unix::fs::symlink::<PathBuf, PathBuf>;
    link("../../../bus/pci/drivers/efa".into(), function.join("driver"))?;
    link(format!("../../../{place}").into(), device.join("device"))?;
    link(format!("../../infiniband/{name}/device").into(), verbs.join("device"))
}
