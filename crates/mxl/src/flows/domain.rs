//! A directory with flows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::definition::{self, FlowDefinition, Format, Geometry};
use super::flow::{Flow, FlowInfo, Refused, Runtime};
use super::grain_window::GrainWindow;
use super::grains::{GrainReader, GrainWriter};
use super::layout;
use super::samples::{SampleReader, SampleWriter};
use super::scaffold::{self, Plan};
use super::{BatchHints, Error, file, garbage};

/// Duration of the media in a ring, in nanoseconds, unless `options.json` sets it.
const HISTORY: u64 = 200_000_000;
const HISTORY_OPTION: &str = "urn:x-mxl:option:history_duration/v1.0";
/// Minimum grains in a ring: the newest, one that is being read, and one that is being written. The C++ SDK makes
/// shorter rings for rates below 15, and empty ones for rates below 5.
const MIN_GRAINS: u32 = 3;
/// Maximum grains in a ring. Each is a file.
const MAX_GRAINS: u32 = 65_536;
/// Suffix of the names of flow directories.
pub(crate) const SUFFIX: &str = ".mxl-flow";
/// Attempts to open a flow, at intervals of a millisecond, while it is being deleted and created again.
const TRIES: u32 = 500;

/// A directory with flows. See [`Domain::open`].
#[derive(Clone, Debug)]
pub struct Domain {
    inner: Arc<DomainInner>,
}

#[derive(Debug)]
struct DomainInner {
    path: PathBuf,
    history: u64,
}

/// A writer, and whether it created the flow.
#[derive(Debug)]
pub struct Created<W> {
    /// The writer.
    pub writer: W,
    /// False if the flow existed before.
    pub created: bool,
}

/// Whether a path is on a file system in memory.
///
/// # Errors
/// [`Error::Os`] for a path that cannot be examined.
pub fn is_tmpfs(path: impl AsRef<Path>) -> Result<bool, Error> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let path = path.as_ref();
    let found = rustix::fs::statfs(path).map_err(|error| Error::os("statfs", path, error))?;
    Ok([TMPFS, RAMFS].contains(&(found.f_type as u64)))
}

impl Domain {
    /// Opens an existing directory. A directory outside a tmpfs works, but slowly, and logs a warning.
    ///
    /// # Errors
    /// [`Error::Os`] if it does not exist, [`Error::File`] if it is not a directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let given = path.as_ref();
        let path = given.canonicalize().map_err(|error| Error::os("open", given, error))?;
        if !path.is_dir() {
            return Err(Error::file(&path, "is not a directory"));
        }
        if let Ok(false) = is_tmpfs(&path) {
            tracing::warn!(domain = %path.display(), "the domain is not on a tmpfs: pictures may go to a disk");
        }
        let history = history(&path);
        Ok(Self { inner: Arc::new(DomainInner { path, history }) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The duration of media that a new ring holds. Default: 200 ms.
    pub fn history(&self) -> Duration {
        Duration::from_nanos(self.inner.history)
    }

    fn dir(&self, id: Uuid) -> PathBuf {
        self.inner.path.join(format!("{id}{SUFFIX}"))
    }

    /// The ids of all flows, with or without writers, in ascending order.
    ///
    /// # Errors
    /// [`Error::Os`] if the directory cannot be read.
    pub fn flows(&self) -> Result<Vec<Uuid>, Error> {
        let os = |error| Error::os("list", &self.inner.path, error);
        let mut flows = Vec::new();
        for entry in fs::read_dir(&self.inner.path).map_err(os)? {
            let name = entry.map_err(os)?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            flows.extend(id.and_then(|id| Uuid::try_parse(id).ok()));
        }
        flows.sort_unstable();
        Ok(flows)
    }

    /// A flow's definition, as its creator gave it.
    ///
    /// # Errors
    /// [`Error::NotFound`], or an error of the system.
    pub fn definition_text(&self, id: Uuid) -> Result<Vec<u8>, Error> {
        let path = self.dir(id).join("flow_def.json");
        file::read(&path).map_err(|error| match error {
            Error::Os { source, .. } if source.kind() == io::ErrorKind::NotFound => Error::NotFound(id),
            other => other,
        })
    }

    /// A flow's definition.
    ///
    /// # Errors
    /// Those of [`definition_text`](Self::definition_text), and [`Error::Definition`] for an invalid text.
    pub fn definition(&self, id: Uuid) -> Result<FlowDefinition, Error> {
        FlowDefinition::parse(&String::from_utf8_lossy(&self.definition_text(id)?))
    }

    /// A flow's description and state, without mapping its payload.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::File`] and [`Error::Truncated`] for a broken flow.
    pub fn info(&self, id: Uuid) -> Result<(FlowInfo, Runtime), Error> {
        let flow = Flow::read(&self.dir(id), id)?;
        let runtime = flow.runtime();
        flow.intact()?;
        Ok((flow.info, runtime))
    }

    /// Whether a process has the flow open for writing.
    ///
    /// # Errors
    /// [`Error::NotFound`], or an error of the system.
    pub fn is_active(&self, id: Uuid) -> Result<bool, Error> {
        garbage::is_active(&self.dir(id), id)
    }

    /// Removes flows without writers, and the remains of flows whose creation was interrupted.
    ///
    /// # Errors
    /// [`Error::Os`] if the directory cannot be read. Files that cannot be removed are logged and stay.
    pub fn collect(&self) -> Result<garbage::Collected, Error> {
        garbage::collect(&self.inner.path)
    }

    /// Removes one flow, if it has no writers. Returns whether it was removed.
    pub fn collect_flow(&self, id: Uuid) -> bool {
        garbage::remove_dead(&self.dir(id))
    }

    /// Creates a flow of grains, or opens an existing one for writing.
    ///
    /// # Errors
    /// [`Error::Definition`]; [`Error::Conflict`] if the flow exists and differs; [`Error::Argument`] for audio; an
    /// error of the system, such as missing permission or memory.
    pub fn create_grains(
        &self,
        definition: &FlowDefinition,
        hints: &BatchHints,
    ) -> Result<Created<GrainWriter>, Error> {
        self.create_grains_as(definition, definition.to_json().as_bytes(), hints)
    }

    /// [`create_grains`](Self::create_grains) with the definition's text, which is stored as it is.
    ///
    /// # Errors
    /// Those of [`create_grains`](Self::create_grains).
    pub fn create_grains_as(
        &self,
        definition: &FlowDefinition,
        text: &[u8],
        hints: &BatchHints,
    ) -> Result<Created<GrainWriter>, Error> {
        let Geometry::Grains { .. } = definition.geometry() else {
            return Err(Error::argument(format!("flow {} is audio: it has samples", definition.id)));
        };
        self.create_as(definition, text, hints)
    }

    /// Creates a flow of samples, or opens an existing one for writing.
    ///
    /// # Errors
    /// The errors of [`create_grains`](Self::create_grains).
    pub fn create_samples(
        &self,
        definition: &FlowDefinition,
        hints: &BatchHints,
    ) -> Result<Created<SampleWriter>, Error> {
        self.create_samples_as(definition, definition.to_json().as_bytes(), hints)
    }

    /// [`create_samples`](Self::create_samples) with the definition's text, which is stored as it is.
    ///
    /// # Errors
    /// Those of [`create_samples`](Self::create_samples).
    pub fn create_samples_as(
        &self,
        definition: &FlowDefinition,
        text: &[u8],
        hints: &BatchHints,
    ) -> Result<Created<SampleWriter>, Error> {
        let Geometry::Samples { .. } = definition.geometry() else {
            return Err(Error::argument(format!("flow {} is not audio: it has grains", definition.id)));
        };
        self.create_as(definition, text, hints)
    }

    /// Opens a flow of grains to read it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::File`] for a broken flow; [`Error::Argument`] for audio.
    pub fn read_grains(&self, id: Uuid) -> Result<GrainReader, Error> {
        self.read(id, GrainReader::new)
    }

    /// Opens a flow of grains as [`read_grains`](Self::read_grains) does, but maps each grain of the ring when it is
    /// read first. A grain whose slot was never read is [`Error::FlowInvalid`] once the flow is gone.
    ///
    /// # Errors
    /// Those of [`read_grains`](Self::read_grains).
    pub fn read_grains_on_demand(&self, id: Uuid) -> Result<GrainReader, Error> {
        self.read(id, GrainReader::on_demand)
    }

    /// Opens a flow of grains for reading, with at most `grains` of them mapped at a time, for programs that read
    /// thousands of flows. Three are enough to read each grain once, in order: the page on media flows gives the limits
    /// and the cost.
    ///
    /// # Errors
    /// Those of [`read_grains`](Self::read_grains), and [`Error::Argument`] for a window of 0 grains.
    pub fn read_grain_window(&self, id: Uuid, grains: usize) -> Result<GrainWindow, Error> {
        self.read(id, |flow| GrainWindow::new(flow, grains))
    }

    /// Opens a flow of samples to read it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::File`] for a broken flow; [`Error::Argument`] for grains.
    pub fn read_samples(&self, id: Uuid) -> Result<SampleReader, Error> {
        self.read(id, SampleReader::new)
    }

    /// Opens a flow and its files, even if it is deleted and created again meanwhile.
    fn read<R>(&self, id: Uuid, open: impl Fn(Flow) -> Result<R, Error>) -> Result<R, Error> {
        let dir = self.dir(id);
        for _ in 0..TRIES {
            let flow = Flow::read(&dir, id)?;
            let opened = flow.inode();
            let is_there = || rustix::fs::stat(dir.join("data")).is_ok_and(|stat| stat.st_ino == opened);
            match open(flow) {
                Err(Error::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound && !is_there() => {}
                opened => return opened,
            }
        }
        Err(Error::NotFound(id))
    }

    fn create_as<W: Writer>(
        &self,
        definition: &FlowDefinition,
        text: &[u8],
        hints: &BatchHints,
    ) -> Result<Created<W>, Error> {
        let (writer, created) = loop {
            let (flow, created) = self.create(definition, text, hints)?;
            let dir = flow.dir().to_path_buf();
            match W::open(flow, self) {
                Ok(writer) => break (writer, created),
                // A process died while it deleted the flow and left some of its files: remove them, and create the flow
                // again.
                Err(Error::Os { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && garbage::remove_dead(&dir) => {}
                Err(error) => return Err(error),
            }
        };
        if let Err(conflict) = compare(writer.shape(), definition) {
            // The flow belongs to another user: it stays as it is.
            writer.flow().keep();
            return Err(conflict);
        }
        Ok(Created { writer, created })
    }

    fn create(
        &self,
        definition: &FlowDefinition,
        text: &[u8],
        hints: &BatchHints,
    ) -> Result<(Flow, bool), Error> {
        definition.check()?;
        hints.check()?;
        let (id, dir) = (definition.id, self.dir(definition.id));
        let plan = self.plan(definition, text, hints)?;
        for _ in 0..TRIES {
            match Flow::write(&dir, id) {
                Ok(flow) => return Ok((flow, false)),
                Err(Refused::Error(error)) => return Err(error),
                // The flow is being deleted, or the directory does not hold a flow.
                Err(Refused::Gone) if dir.exists() => std::thread::sleep(Duration::from_millis(1)),
                Err(Refused::Gone) => {
                    if let Some(flow) = scaffold::make(&self.inner.path, &dir, &plan)? {
                        return Ok((flow, true));
                    }
                }
            }
        }
        Err(Error::file(&dir, "exists and is not a flow that can be opened: remove it"))
    }

    fn plan<'a>(
        &self,
        definition: &FlowDefinition,
        text: &'a [u8],
        hints: &BatchHints,
    ) -> Result<Plan<'a>, Error> {
        let geometry = definition.geometry();
        let rate = geometry.rate();
        let in_history = |times: u128| {
            let count = u128::from(self.inner.history) * times * rate.numerator as u128;
            u32::try_from(count / (1_000_000_000 * rate.denominator as u128)).unwrap_or(u32::MAX)
        };
        let (ring, batch) = match geometry {
            Geometry::Grains { slices, .. } => (in_history(1).max(MIN_GRAINS), u32::from(slices)),
            Geometry::Samples { word, .. } => {
                let batch = i128::from(rate.numerator) / (100 * i128::from(rate.denominator));
                let batch = u32::try_from(batch).unwrap_or(u32::MAX);
                let page = 4096 / word;
                (in_history(2).max(2).checked_next_multiple_of(page).unwrap_or(u32::MAX), batch)
            }
        };
        let grains = matches!(geometry, Geometry::Grains { .. });
        if ring == u32::MAX || (grains && ring > MAX_GRAINS) {
            let history = self.history();
            return Err(Error::Definition(format!(
                "a history of {history:?} at rate {rate} exceeds the largest ring"
            )));
        }
        let format = match definition.format {
            Format::Video(_) => layout::format::VIDEO,
            Format::Audio(_) => layout::format::AUDIO,
            Format::Data(_) => layout::format::DATA,
        };
        let max_commit_batch = hints.max_commit_batch_size_hint.unwrap_or(batch);
        let max_sync_batch = hints.max_sync_batch_size_hint.unwrap_or(batch);
        Ok(Plan { id: definition.id, text, format, geometry, ring, max_commit_batch, max_sync_batch })
    }
}

/// The media duration of the domain's rings. As in C++, invalid options are logged and ignored.
fn history(domain: &Path) -> u64 {
    let path = domain.join("options.json");
    let text = match file::read_linked(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(Error::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => return HISTORY,
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "options of the domain cannot be read");
            return HISTORY;
        }
    };
    let wanted = match definition::json_object(&text) {
        Ok(options) => options.get(HISTORY_OPTION).map(serde_json::Value::as_f64),
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "options of the domain are ignored");
            return HISTORY;
        }
    };
    match wanted {
        None => HISTORY,
        Some(Some(history)) if history >= 1.0 => history as u64,
        Some(_) => {
            tracing::error!(path = %path.display(), "the history must be a number of nanoseconds above 0");
            HISTORY
        }
    }
}

/// Checks that an existing flow has the shape that its writer expects.
fn compare(there: Shape, definition: &FlowDefinition) -> Result<(), Error> {
    let wanted = Shape::new(definition);
    let id = definition.id;
    let conflict = |what, there, wanted| Err(Error::Conflict { id, what, there, wanted });
    if there.format != wanted.format {
        return conflict("format", there.format.to_string(), wanted.format.to_string());
    }
    match (there.geometry, wanted.geometry) {
        (there, wanted) if there == wanted => Ok(()),
        (there, wanted) => conflict("geometry", format!("{there:?}"), format!("{wanted:?}")),
    }
}

/// A writer of either kind, as `Domain` opens it.
pub(crate) trait Writer: Sized {
    /// Maps the flow's ring.
    fn open(flow: Flow, domain: &Domain) -> Result<Self, Error>;
    /// The shape of the ring.
    fn shape(&self) -> Shape;
    /// The flow.
    fn flow(&self) -> &Flow;
}

/// The properties that two writers of a flow must agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub format: u32,
    pub geometry: Geometry,
}

impl Shape {
    fn new(definition: &FlowDefinition) -> Self {
        let format = match definition.format {
            Format::Video(_) => layout::format::VIDEO,
            Format::Audio(_) => layout::format::AUDIO,
            Format::Data(_) => layout::format::DATA,
        };
        Self { format, geometry: definition.geometry() }
    }
}
