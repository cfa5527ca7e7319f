//! Flows on one host: everything except the protocol and the index arithmetic, which loom builds separately.

mod batch;
mod copy;
pub mod definition;
mod domain;
mod error;
mod file;
mod flow;
mod futex;
mod garbage;
mod grain_slots;
mod grain_window;
mod grains;
pub mod layout;
mod samples;
mod scaffold;
pub mod sigbus;
#[cfg(feature = "stream")]
mod stream;
mod sync_group;
pub mod time;
mod uri;
pub mod v210;
mod visible;
mod wait;
mod watcher;

pub use batch::BatchHints;
pub use definition::{FlowDefinition, Format, Geometry, GroupHint};
pub use domain::{Created, Domain, is_tmpfs};
pub use error::{Error, Status};
pub use flow::{FlowInfo, Runtime};
pub use garbage::Collected;
pub use grain_window::GrainWindow;
pub use grains::{GrainInfo, GrainReader, GrainWriter, OpenGrain, ReadGrain};
pub use samples::{OpenSamples, ReadSamples, Sample, SampleReader, SampleWriter};
#[cfg(feature = "stream")]
pub use stream::{Batch, Batches, Grains};
pub use sync_group::SyncGroup;
pub use time::Rational;
pub use uri::Uri;
pub use uuid::Uuid;
pub use visible::visible;
pub use wait::{Wait, Watch, wait_any};
