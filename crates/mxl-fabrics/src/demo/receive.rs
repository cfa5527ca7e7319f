//! The receiving part of the program: a target, or a merge of several paths.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mxl::FlowDefinition;
use ofi_progress_bar::Progress;

use super::{EXPORT_EVERY, Options, domain, export, file, place, ways};
use crate::driven::sealed::Polled;
use crate::{Drive, Driven, Error, Merge, MergePath, Received, Result, Target, TargetInfo};

/// The common interface of a target and of several merged ones.
trait Receiver {
    fn infos(&self) -> Vec<TargetInfo>;
    fn read(&mut self, timeout: Duration) -> Result<Option<Received>>;
    fn statistics(&self) -> String;
    fn metrics(&self) -> String;
}

impl Receiver for Target {
    fn infos(&self) -> Vec<TargetInfo> {
        vec![self.info().clone()]
    }

    fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        Self::read(self, timeout)
    }

    fn statistics(&self) -> String {
        format!("{:?}", self.stats())
    }

    fn metrics(&self) -> String {
        Self::metrics(self)
    }
}

impl Receiver for Merge {
    fn infos(&self) -> Vec<TargetInfo> {
        (0..self.paths()).filter_map(|at| Some(self.path(at)?.info().clone())).collect()
    }

    fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        Self::read(self, timeout)
    }

    fn statistics(&self) -> String {
        format!("{:?}", self.stats())
    }

    fn metrics(&self) -> String {
        Self::metrics(self)
    }
}

impl<T: Receiver + Drive + Polled<Event = Received>> Receiver for Driven<T> {
    fn infos(&self) -> Vec<TargetInfo> {
        self.with(|receiver| receiver.infos())
    }

    fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        self.wait(timeout)
    }

    fn statistics(&self) -> String {
        self.with(|receiver| receiver.statistics())
    }

    fn metrics(&self) -> String {
        self.with(|receiver| receiver.metrics())
    }
}

/// Parses a path: `PROVIDER[,NODE[,SERVICE]]`.
fn further_path(given: &str, id: Option<u64>) -> Result<MergePath<'_>> {
    let mut parts = given.splitn(3, ',');
    let provider = parts.next().unwrap_or_default();
    let provider = provider.parse().map_err(|error| Error::Argument(format!("--path {given}: {error}")))?;
    Ok(MergePath { provider, node: parts.next(), service: parts.next(), id, options: None })
}

/// Receives until enough has arrived.
pub(super) fn receive(options: &Options) -> Result<()> {
    let domain = domain(options)?;
    let definition = FlowDefinition::parse(&file(Path::new(&options.flow))?)?;
    let (node, service) = place(options);
    if options.path.is_empty() {
        let id = options.target_id;
        let place = (node, service);
        let target = Target::open_with(&domain, &definition, options.provider, place, id, &ways(options)?)?;
        return receive_by(options, target);
    }
    let first = MergePath { provider: options.provider, node, service, id: options.target_id, options: None };
    let mut paths = vec![first];
    for (given, after) in options.path.iter().zip(1..) {
        paths.push(further_path(given, options.target_id.map(|id| id.wrapping_add(after)))?);
    }
    receive_by(options, Merge::open_with(&domain, &definition, &paths, &ways(options)?)?)
}

fn receive_by<T: Receiver + Drive + Polled<Event = Received>>(options: &Options, receiver: T) -> Result<()> {
    if options.progress_thread {
        receive_from(options, Driven::start(receiver)?)
    } else {
        receive_from(options, receiver)
    }
}

fn receive_from(options: &Options, mut receiver: impl Receiver) -> Result<()> {
    let infos: Vec<_> = receiver.infos().iter().map(TargetInfo::to_json).collect();
    // For the initiator's command line.
    infos.iter().for_each(|json| println!("target-info {}", STANDARD.encode(json)));
    if !options.target_info.is_empty() && infos.len() > 1 && options.target_info.len() != infos.len() {
        let (given, paths) = (options.target_info.len(), infos.len());
        return Err(Error::Argument(format!("{given} files for target infos, but {paths} paths")));
    }
    for (path, json) in options.target_info.iter().zip(infos.iter().chain(std::iter::repeat(&infos[0]))) {
        std::fs::write(path, json).map_err(|error| Error::Argument(format!("{path}: {error}")))?;
    }
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut said = Instant::now();
    let progress = Progress::steps(options.quiet, options.count);
    progress.begin("received");
    while left > 0 {
        match receiver.read(Duration::from_secs(1))? {
            Some(Received::Grain { .. } | Received::Samples { .. }) => {
                left -= 1;
                progress.done();
            }
            Some(Received::Lost { first, count }) => {
                progress.aside(|| println!("lost {count} from {first}"));
            }
            Some(other) => progress.aside(|| println!("{other:?}")),
            None => {}
        }
        if said.elapsed() > EXPORT_EVERY {
            said = Instant::now();
            progress.aside(|| println!("{}", receiver.statistics()));
            export(options, || receiver.metrics())?;
        }
    }
    drop(progress);
    println!("{}", receiver.statistics());
    export(options, || receiver.metrics())?;
    Ok(())
}
