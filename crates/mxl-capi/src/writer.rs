//! Writers. Each has at most one grain or one window of samples open: the C functions cannot name several.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mxl::{GrainInfo, GrainWriter, SampleWriter, Status, Uuid};

use crate::types::{BufferSlice, Config, GrainHeader, MultiBufferSlice};
use mxl_ffi::border::{Outcome, out, status};
use mxl_ffi::object::{Kind, Object, magics};

/// The object behind `mxlFlowWriter`.
pub struct Writer {
    flow: WriterFlow,
    /// The open index.
    open: Mutex<Option<u64>>,
}

enum WriterFlow {
    Grains(GrainWriter),
    Samples(Box<SampleWriter>),
}

impl Kind for Writer {
    const MAGIC: u64 = magics::WRITER;
}

impl Writer {
    pub(crate) fn grains(writer: GrainWriter) -> Self {
        Self { flow: WriterFlow::Grains(writer), open: Mutex::new(None) }
    }

    pub(crate) fn samples(writer: SampleWriter) -> Self {
        Self { flow: WriterFlow::Samples(Box::new(writer)), open: Mutex::new(None) }
    }

    pub(crate) fn id(&self) -> Uuid {
        match &self.flow {
            WriterFlow::Grains(writer) => writer.id(),
            WriterFlow::Samples(writer) => writer.id(),
        }
    }

    pub(crate) fn is_current(&self) -> bool {
        match &self.flow {
            WriterFlow::Grains(writer) => writer.is_current(),
            WriterFlow::Samples(writer) => writer.is_current(),
        }
    }

    pub(crate) fn config(&self) -> Config {
        match &self.flow {
            WriterFlow::Grains(writer) => writer.info().config,
            WriterFlow::Samples(writer) => writer.info().config,
        }
    }

    fn open(&self) -> MutexGuard<'_, Option<u64>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn writer<'a>(handle: *const Object<Writer>) -> Outcome<&'a Writer> {
    Object::get(handle).ok_or_else(|| Status::InvalidWriter.into())
}

fn grains<'a>(handle: *const Object<Writer>) -> Outcome<(&'a Writer, &'a GrainWriter)> {
    let writer = writer(handle)?;
    match &writer.flow {
        WriterFlow::Grains(grains) => Ok((writer, grains)),
        WriterFlow::Samples(_) => Err(Status::InvalidWriter.into()),
    }
}

fn samples<'a>(handle: *const Object<Writer>) -> Outcome<(&'a Writer, &'a SampleWriter)> {
    let writer = writer(handle)?;
    match &writer.flow {
        WriterFlow::Samples(samples) => Ok((writer, samples)),
        WriterFlow::Grains(_) => Err(Status::InvalidWriter.into()),
    }
}

/// `mxlFlowWriterGetGrainInfo`: the current state of a grain's slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterGetGrainInfo(
    handle: *const Object<Writer>,
    index: u64,
    info: *mut GrainHeader,
) -> c_int {
    status(|| {
        let place = out(info)?;
        let writer = grains(handle)?.1;
        place.set(writer.slot_header(index)?);
        Ok(writer.intact()?)
    })
}

/// `mxlFlowWriterOpenGrain`. It closes the previously open grain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterOpenGrain(
    handle: *const Object<Writer>,
    index: u64,
    info: *mut GrainHeader,
    payload: *mut *mut u8,
) -> c_int {
    status(|| {
        let (info, payload) = (out(info)?, out(payload)?);
        let (writer, grains) = grains(handle)?;
        let mut open = writer.open();
        let (_, at) = grains.begin(index)?;
        info.fill(|info| grains.slot_header_into(index, info))?;
        payload.set(at);
        *open = Some(index);
        Ok(())
    })
}

/// `mxlFlowWriterCancelGrain`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterCancelGrain(handle: *const Object<Writer>) -> c_int {
    status(|| {
        *grains(handle)?.0.open() = None;
        Ok(())
    })
}

/// `mxlFlowWriterCommitGrain`. It closes a grain whose slices are all valid. One that could not be published stays
/// open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterCommitGrain(
    handle: *const Object<Writer>,
    info: *const GrainHeader,
) -> c_int {
    status(|| {
        // SAFETY: the C caller's promise: null, or a grain's info that does not change during the call.
        let info = unsafe { info.as_ref() }.ok_or(Status::InvalidArg)?;
        let (writer, grains) = grains(handle)?;
        let mut open = writer.open();
        if *open != Some(info.index) {
            return Err(Status::InvalidArg.into());
        }
        grains.set_reserved(info.index, &info.reserved);
        grains.publish(GrainInfo {
            index: info.index,
            flags: info.flags,
            size: info.grain_size,
            total_slices: info.total_slices,
            valid_slices: info.valid_slices,
        })?;
        if info.valid_slices == info.total_slices {
            *open = None;
        }
        Ok(())
    })
}

/// `mxlFlowWriterGetMaxWriteLengthSamples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterGetMaxWriteLengthSamples(
    handle: *const Object<Writer>,
    length: *mut usize,
) -> c_int {
    status(|| {
        let place = out(length)?;
        place.set(samples(handle)?.1.max_write() as usize);
        Ok(())
    })
}

/// `mxlFlowWriterOpenSamples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterOpenSamples(
    handle: *const Object<Writer>,
    index: u64,
    count: usize,
    slices: *mut MultiBufferSlice,
) -> c_int {
    status(|| {
        let place = out(slices)?;
        let (writer, samples) = samples(handle)?;
        let mut open = writer.open();
        let (window, base) = samples.begin(index, count as u64)?;
        let (word, stride) = samples.strides();
        let piece = |start: u64, length: u64| BufferSlice {
            pointer: base.wrapping_add(start as usize * word),
            size: length as usize * word,
        };
        let fragments = [piece(window.start, window.first), piece(0, window.second)];
        place.set(MultiBufferSlice { fragments, stride, count: samples.channels() as usize });
        *open = Some(index);
        Ok(())
    })
}

/// `mxlFlowWriterCancelSamples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterCancelSamples(handle: *const Object<Writer>) -> c_int {
    status(|| {
        *samples(handle)?.0.open() = None;
        Ok(())
    })
}

/// `mxlFlowWriterCommitSamples`. Samples that could not be published stay open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowWriterCommitSamples(handle: *const Object<Writer>) -> c_int {
    status(|| {
        let (writer, samples) = samples(handle)?;
        let mut open = writer.open();
        samples.publish(open.ok_or(Status::InvalidArg)?)?;
        *open = None;
        Ok(())
    })
}
