//! Creates a flow in a directory with a hidden name, and publishes it by one rename.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Access, AtFlags, CWD, RenameFlags};
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use super::definition::Geometry;
use super::flow::Flow;
use super::layout::{self, CommonConfig, Config, ContinuousConfig, Data, DiscreteConfig, GrainHeader};
use super::{Error, file, time};

/// Prefix of the directories of unfinished flows.
pub const PREFIX: &str = ".mxl-tmp-";

/// The properties of a flow to create.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    pub id: Uuid,
    /// The original text of the definition.
    pub text: &'a [u8],
    pub format: u32,
    pub geometry: Geometry,
    /// Grains, or samples of a channel.
    pub ring: u32,
    pub max_commit_batch: u32,
    pub max_sync_batch: u32,
}

/// A hidden path that another process is unlikely to use.
fn place(domain: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mixed = (time::now() ^ COUNT.fetch_add(1, Ordering::Relaxed) << 48).rotate_left(21);
    let mixed = (mixed ^ u64::from(std::process::id())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    domain.join(format!("{PREFIX}{mixed:016x}"))
}

/// Deletes a flow's directory: first renames it to a hidden name, then removes it, so that a process that dies
/// meanwhile leaves no partial flow under the public name.
///
/// # Errors
/// Those of the file system. A directory of another user is refused before it is changed.
pub fn remove(dir: &Path) -> io::Result<()> {
    // A user with write access to the domain could rename another user's flow but not remove it: the flow would be
    // hidden, and still occupy its memory.
    rustix::fs::accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
    let aside = place(dir.parent().unwrap_or(dir));
    // If it cannot be renamed, its files may still be removable.
    let is_aside = rustix::fs::renameat_with(CWD, dir, CWD, &aside, RenameFlags::NOREPLACE).is_ok();
    fs::remove_dir_all(if is_aside { &aside } else { dir })
}

/// A directory that is removed unless it was published.
struct Scaffold(PathBuf);

impl Drop for Scaffold {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Scaffold {
    fn new(domain: &Path) -> Result<Self, Error> {
        for _ in 0..64 {
            let path = place(domain);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::os("create", &path, error)),
            }
        }
        Err(Error::file(domain, "64 names of new directories were taken"))
    }

    /// Renames to the public name. Returns `false` if that exists already.
    fn publish(&self, to: &Path) -> Result<bool, Error> {
        let os = |call| move |error: io::Error| Error::os(call, to, error);
        let mode = fs::metadata(&self.0).map_err(os("stat"))?.permissions().mode() | 0o055;
        fs::set_permissions(&self.0, fs::Permissions::from_mode(mode)).map_err(os("chmod"))?;
        match rustix::fs::renameat_with(CWD, &self.0, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => Ok(false),
            Err(error) => Err(Error::os("rename", to, error)),
        }
    }
}

/// Creates the flow, or returns `None` if another process created a flow of that name first.
pub fn make(domain: &Path, to: &Path, plan: &Plan<'_>) -> Result<Option<Flow>, Error> {
    let scaffold = Scaffold::new(domain)?;
    let dir = &scaffold.0;
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        fs::write(&path, bytes).map_err(|error| Error::os("write", &path, error))
    };
    write("flow_def.json", plan.text)?;
    let path = dir.join("data");
    let data = file::create(&path, size_of::<Data>() as u64)?;
    file::lock_shared(&data, &path)?;
    let (_, inode) = file::size(&data, &path)?;
    put(&data, &path, plan.data(inode).as_bytes())?;
    match plan.geometry {
        Geometry::Grains { payload, slices, .. } => {
            write("access", b"")?;
            let grains = dir.join("grains");
            fs::create_dir(&grains).map_err(|error| Error::os("create", &grains, error))?;
            let mut header = GrainHeader::new_zeroed();
            header.version = layout::GRAIN_VERSION;
            header.size = size_of::<GrainHeader>() as u32;
            header.grain_size = payload;
            header.total_slices = slices;
            for index in 0..plan.ring {
                let path = grain_path(dir, index);
                let grain = file::create(&path, (layout::PAYLOAD_OFFSET + payload as usize) as u64)?;
                put(&grain, &path, header.as_bytes())?;
            }
        }
        Geometry::Samples { channels, word, .. } => {
            let bytes = u64::from(plan.ring) * u64::from(word);
            let bytes = bytes.checked_mul(u64::from(channels)).filter(|&bytes| bytes < 1 << 47);
            let path = dir.join("channels");
            let bytes =
                bytes.ok_or_else(|| Error::file(&path, format!("{channels} channels are too many")))?;
            file::create(&path, bytes)?;
        }
    }
    let mut flow = Flow::locked(data, dir, plan.id)?;
    if !scaffold.publish(to)? {
        return Ok(None);
    }
    flow.renamed(to);
    Ok(Some(flow))
}

/// The file of slot `index` in the flow's directory.
pub fn grain_path(dir: &Path, index: u32) -> PathBuf {
    dir.join(format!("grains/data.{index}"))
}

fn put(file: impl AsFd, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut at = 0;
    while at < bytes.len() {
        at += rustix::io::pwrite(&file, &bytes[at..], at as u64)
            .map_err(|error| Error::os("write", path, error))?;
    }
    Ok(())
}

impl Plan<'_> {
    fn data(&self, inode: u64) -> Data {
        let mut data = Data::new_zeroed();
        let (rate, specific) = match self.geometry {
            Geometry::Grains { rate, slice_sizes, .. } => {
                let discrete = DiscreteConfig { slice_sizes, grain_count: self.ring, ..Default::default() };
                (rate, zerocopy::transmute!(discrete))
            }
            Geometry::Samples { rate, channels, .. } => {
                let (channel_count, buffer_length) = (channels, self.ring);
                let continuous = ContinuousConfig { channel_count, buffer_length, ..Default::default() };
                (rate, zerocopy::transmute!(continuous))
            }
        };
        let now = time::now();
        data.info.version = layout::DATA_VERSION;
        data.info.size = size_of::<layout::Info>() as u32;
        data.info.config = Config {
            common: CommonConfig {
                id: *self.id.as_bytes(),
                format: self.format,
                flags: 0,
                rate_numerator: rate.numerator,
                rate_denominator: rate.denominator,
                max_commit_batch: self.max_commit_batch,
                max_sync_batch: self.max_sync_batch,
                payload_location: 0,
                device_index: -1,
                reserved: [0; 72],
            },
            specific,
        };
        data.info.runtime.last_write = now;
        data.info.runtime.last_read = now;
        data.state.inode = inode;
        data
    }
}
