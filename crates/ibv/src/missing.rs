//! Finds out, from the file system, what a host lacks for RDMA devices, to give advice in errors.

use std::io;
use std::path::Path;

use crate::error::Error;

/// The reason why `call` found no device.
pub fn device(call: &'static str) -> Error {
    let open = |path: &Path| std::fs::File::options().read(true).write(true).open(path).map(drop);
    let (errno, advice) = diagnose(Path::new("/"), open);
    Error::with(call, errno, advice)
}

/// The first thing missing below `root`, in the order in which they are needed: a device known to the kernel, its
/// files, permission to open them, and the connection manager.
fn diagnose(root: &Path, open: impl Fn(&Path) -> io::Result<()>) -> (i32, String) {
    let names = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let known = names("sys/class/infiniband");
    if known.is_empty() {
        let advice = "the kernel knows no RDMA device: load the module of the adapter (mlx5_ib, efa; see `rdma link`), \
                      or make a soft-RoCE device (modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0)";
        return (libc::ENODEV, advice.into());
    }
    let known = known.join(", ");
    let files = names("dev/infiniband");
    let uverbs: Vec<&String> = files.iter().filter(|name| name.starts_with("uverbs")).collect();
    if uverbs.is_empty() {
        let advice = format!(
            "the kernel knows {known}, but there is no /dev/infiniband/uverbs*: load the module ib_uverbs, or pass the \
             devices to the container (--device /dev/infiniband)"
        );
        return (libc::ENODEV, advice);
    }
    let connection_manager = "rdma_cm".to_string();
    let has_manager = files.contains(&connection_manager);
    for name in uverbs.into_iter().chain(has_manager.then_some(&connection_manager)) {
        if let Err(error) = open(&root.join("dev/infiniband").join(name)) {
            let advice = match error.kind() {
                io::ErrorKind::PermissionDenied => format!(
                    "this user may not open /dev/infiniband/{name}: give it read and write access (group rdma, or a \
                     udev rule; in a container, --device /dev/infiniband)"
                ),
                _ => format!("/dev/infiniband/{name} cannot be opened: {error}"),
            };
            return (error.raw_os_error().unwrap_or(libc::EACCES), advice);
        }
    }
    if !has_manager {
        let advice = "there is no /dev/infiniband/rdma_cm: load the module rdma_ucm";
        return (libc::ENOENT, advice.into());
    }
    let advice = format!(
        "rdma-core has no driver for {known}: install ibverbs-providers (Debian) or libibverbs (RPM), and see \
         `ibv_devices`"
    );
    (libc::ENODEV, advice)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A temporary root folder with test files.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("ibv-missing-{}-{name}", std::process::id()));
            for file in files {
                let path = root.join(file);
                std::fs::create_dir_all(path.parent().expect("a folder")).unwrap();
                std::fs::write(path, "").unwrap();
            }
            Self(root)
        }

        fn lacks(&self, open: impl Fn(&Path) -> io::Result<()>) -> (i32, String) {
            diagnose(&self.0, open)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const DEVICE: &str = "sys/class/infiniband/mlx5_0";
    const UVERBS: &str = "dev/infiniband/uverbs0";
    const MANAGER: &str = "dev/infiniband/rdma_cm";

    #[track_caller]
    fn says((errno, advice): (i32, String), expected: i32, words: &[&str]) {
        assert_eq!(errno, expected, "{advice}");
        words.iter().for_each(|word| assert!(advice.contains(word), "{word:?} is missing from {advice:?}"));
    }

    #[test]
    fn each_thing_that_is_missing_is_named_with_what_to_do() {
        let opens = |_: &Path| Ok(());
        let words = ["no RDMA device", "load the module", "rdma_rxe"];
        says(Root::new("none", &[]).lacks(opens), libc::ENODEV, &words);
        let words = ["mlx5_0", "ib_uverbs", "--device"];
        says(Root::new("uverbs", &[DEVICE]).lacks(opens), libc::ENODEV, &words);
        says(Root::new("cm", &[DEVICE, UVERBS]).lacks(opens), libc::ENOENT, &["rdma_cm", "rdma_ucm"]);
        let words = ["driver for mlx5_0", "ibverbs-providers"];
        says(Root::new("driver", &[DEVICE, UVERBS, MANAGER]).lacks(opens), libc::ENODEV, &words);
    }

    #[test]
    fn a_file_that_may_not_be_opened_is_named() {
        let root = Root::new("closed", &[DEVICE, UVERBS, MANAGER]);
        for file in ["uverbs0", "rdma_cm"] {
            let open = |path: &Path| match path.ends_with(file) {
                true => Err(io::Error::from_raw_os_error(libc::EACCES)),
                false => Ok(()),
            };
            says(root.lacks(open), libc::EACCES, &["this user may not open", file, "group rdma"]);
        }
        let gone = |_: &Path| Err(io::Error::from_raw_os_error(libc::ENXIO));
        says(root.lacks(gone), libc::ENXIO, &["uverbs0 cannot be opened"]);
    }
}
