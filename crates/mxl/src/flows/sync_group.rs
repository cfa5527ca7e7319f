//! Groups of related flows: waiting until all of them have the data of one point in time.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use super::time::{self, Rational};
use super::wait::Wait;
use super::{Error, GrainReader, SampleReader};

#[derive(Clone, Debug)]
enum GroupReader {
    Grains(Arc<GrainReader>, u16),
    Samples(Arc<SampleReader>),
}

#[derive(Clone, Debug)]
struct Member {
    reader: GroupReader,
    /// The longest delay of this flow so far, in nanoseconds.
    delay: u64,
}

/// Readers of related flows.
#[derive(Clone, Debug, Default)]
pub struct SyncGroup {
    members: Vec<Member>,
}

impl SyncGroup {
    /// A group without readers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a flow of grains. A wait requires `slices` valid slices of its grain (`u16::MAX`: all). Adding a flow again
    /// replaces the number.
    pub fn add_grains(&mut self, reader: &Arc<GrainReader>, slices: u16) {
        for member in &mut self.members {
            if let GroupReader::Grains(there, wanted) = &mut member.reader
                && Arc::ptr_eq(there, reader)
            {
                *wanted = slices;
                return;
            }
        }
        self.members.push(Member { reader: GroupReader::Grains(reader.clone(), slices), delay: 0 });
    }

    /// Adds a flow of samples, once.
    pub fn add_samples(&mut self, reader: &Arc<SampleReader>) {
        let is_there = |member: &Member| matches!(&member.reader, GroupReader::Samples(there) if Arc::ptr_eq(there, reader));
        if !self.members.iter().any(is_there) {
            self.members.push(Member { reader: GroupReader::Samples(reader.clone()), delay: 0 });
        }
    }

    /// Removes a flow of grains.
    pub fn remove_grains(&mut self, reader: &Arc<GrainReader>) {
        self.members.retain(
            |member| !matches!(&member.reader, GroupReader::Grains(there, _) if Arc::ptr_eq(there, reader)),
        );
    }

    /// Removes a flow of samples.
    pub fn remove_samples(&mut self, reader: &Arc<SampleReader>) {
        self.members.retain(
            |member| !matches!(&member.reader, GroupReader::Samples(there) if Arc::ptr_eq(there, reader)),
        );
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the group has no flows.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Waits until each flow has the grain or sample at `timestamp`, in nanoseconds of TAI.
    ///
    /// The wait begins with the flow that has been latest so far, so that the others usually need no sleep.
    ///
    /// # Errors
    /// The error of the first flow without the data: [`Error::TooEarly`] at the end of the wait, [`Error::TooLate`],
    /// [`Error::Skipped`], [`Error::FlowInvalid`], [`Error::Truncated`].
    pub fn wait_for_data_at(&mut self, timestamp: u64, wait: Wait) -> Result<(), Error> {
        let begin = Instant::now();
        let wait = match wait {
            Wait::For(time) => begin.checked_add(time).map_or(wait, Wait::Until),
            other => other,
        };
        for member in &mut self.members {
            let index = |rate| time::timestamp_to_index(rate, timestamp).unwrap_or(u64::MAX);
            let (rate, index) = match &member.reader {
                GroupReader::Grains(reader, slices) => {
                    let index = index(reader.rate());
                    reader.wait_for(index, *slices, wait)?;
                    (reader.rate(), index)
                }
                GroupReader::Samples(reader) => {
                    let index = index(reader.rate());
                    reader.wait_for(index, 0, wait)?;
                    (reader.rate(), index)
                }
            };
            member.delay = member.delay.max(delay(rate, index));
        }
        self.members.sort_by_key(|member| Reverse(member.delay));
        Ok(())
    }
}

/// The time since the start of `index`.
fn delay(rate: Rational, index: u64) -> u64 {
    time::index_to_timestamp(rate, index).map_or(0, |begin| time::now().saturating_sub(begin))
}
