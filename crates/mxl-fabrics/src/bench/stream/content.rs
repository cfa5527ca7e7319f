//! The content of a flow, which lets the other end check that it is complete and in place.

use std::ops::Range;

use mxl::{OpenGrain, OpenSamples, ReadGrain, ReadSamples};

use crate::Result;

/// Bytes from one mark of a grain to the next. Less than a packet, so that a missing packet is detected.
const APART: usize = 1024;

fn mark(index: u64, offset: usize) -> [u8; 8] {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset as u64).to_le_bytes()
}

fn marks(len: usize) -> impl Iterator<Item = usize> {
    (0..len.saturating_sub(7)).step_by(APART)
}

/// Marks the KiBs of a grain that begin in a range of its bytes.
pub fn fill_grain(grain: &mut OpenGrain<'_>, bytes: Range<usize>) -> Result<()> {
    let index = grain.info().index;
    for offset in marks(grain.len()).filter(|offset| bytes.contains(offset)) {
        grain.write(offset, &mark(index, offset))?;
    }
    Ok(())
}

/// Whether all marks belong to the grain.
pub fn is_grain(grain: &ReadGrain<'_>) -> Result<bool> {
    let index = grain.info().index;
    let mut found = [0; 8];
    for offset in marks(grain.len()) {
        grain.read_into(offset, &mut found)?;
        if found != mark(index, offset) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sample(index: u64, channel: u32) -> f32 {
    // Below 2^24, so that a float represents each of them exactly.
    (index.wrapping_mul(31).wrapping_add(u64::from(channel) * 7) % 65_521) as f32
}

fn samples(first: u64, count: usize, channel: u32) -> Vec<f32> {
    (first..).take(count).map(|index| sample(index, channel)).collect()
}

/// Fills a batch that begins with sample `first`.
pub fn fill_samples(batch: &mut OpenSamples<'_>, first: u64, channels: u32) -> Result<()> {
    for channel in 0..channels {
        batch.write_channel(channel, &samples(first, batch.len(), channel))?;
    }
    Ok(())
}

/// Whether all samples belong to a batch that begins with `first`.
pub fn is_samples(batch: &ReadSamples<'_>, first: u64, channels: u32) -> Result<bool> {
    let mut found = vec![0.0_f32; batch.len()];
    for channel in 0..channels {
        batch.read_channel(channel, &mut found)?;
        if found != samples(first, found.len(), channel) {
            return Ok(false);
        }
    }
    Ok(true)
}
