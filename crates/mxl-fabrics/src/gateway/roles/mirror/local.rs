//! The mirrored flows in this host's domain: each has a target that publishes what arrives.

use mxl::{BatchHints, Domain, FlowDefinition, Geometry, Uuid};

use crate::gateway::roles::web::Counts;
use crate::{Driven, Engine, Error, Options, Provider, Result, Target, TargetInfo};

/// The domain, and how targets are opened.
#[derive(Debug)]
pub struct Local {
    /// The domain.
    pub domain: Domain,
    /// The provider of the targets.
    pub provider: Provider,
    /// Their node; without it, the address that the control connection has.
    pub node: Option<String>,
    /// Their options.
    pub options: Options,
    /// The thread that drives them.
    pub engine: Engine,
}

/// A mirrored flow.
pub struct Mirrored {
    text: String,
    geometry: Geometry,
    /// What was reported of the target's count of late data.
    late: u64,
    node: Option<String>,
    target: Driven<Target>,
    /// What the serving side needs to know of the target.
    pub info: Box<TargetInfo>,
}

/// What a target has reported since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// An initiator has connected.
    pub is_connected: bool,
    /// The initiator has left.
    pub is_left: bool,
    /// Connections.
    pub connections: u64,
    /// What was received, without connections.
    pub counts: Counts,
}

impl Mirrored {
    /// Whether the flow is that of a definition, at a node.
    pub fn is_of(&self, text: &str, node: Option<&str>) -> bool {
        self.text == text && self.node.as_deref() == node
    }

    /// Reads the target's events.
    ///
    /// # Errors
    /// The error that broke it.
    pub fn look(&mut self) -> Result<Report> {
        use crate::Received;
        let mut report = Report::default();
        let counts = &mut report.counts;
        while let Some(event) = self.target.wait(std::time::Duration::ZERO)? {
            match (event, self.geometry) {
                (Received::Connected, _) => {
                    (report.is_connected, report.is_left) = (true, false);
                    report.connections += 1;
                }
                (Received::Disconnected, _) => report.is_left = true,
                (Received::Grain { slices, .. }, Geometry::Grains { payload, slices: total, .. })
                    if slices == total =>
                {
                    counts.forwarded += 1;
                    counts.bytes += u64::from(payload);
                }
                (Received::Samples { count, .. }, Geometry::Samples { channels, word, .. }) => {
                    counts.forwarded = counts.forwarded.saturating_add(count);
                    let frame = u64::from(channels) * u64::from(word);
                    counts.bytes = counts.bytes.saturating_add(count.saturating_mul(frame));
                }
                (Received::Lost { count, .. }, _) => counts.lost = counts.lost.saturating_add(count),
                _ => {}
            }
        }
        if counts.forwarded > 0 {
            // More may have arrived since the last event: what it adds belongs to the next look.
            let late = self.target.inspect(|target| target.stats().late);
            counts.late = late.saturating_sub(self.late).min(counts.forwarded);
            self.late += counts.late;
        }
        Ok(report)
    }

    /// Whether an initiator is connected.
    pub fn is_connected(&self) -> bool {
        self.target.inspect(Target::is_connected)
    }
}

impl Local {
    /// Opens a flow with this definition, and a target for it. `former` is the mirrored flow with this id, which is
    /// kept if the definition is the same.
    ///
    /// # Errors
    /// [`Error::Argument`] for the definition of another flow, and for a flow that a program of this host writes; those
    /// of [`Target::open_with`].
    pub fn mirror(
        &self,
        id: Uuid,
        text: String,
        node: Option<String>,
        former: Option<Mirrored>,
    ) -> Result<Mirrored> {
        let definition = FlowDefinition::parse(&text)?;
        if definition.id != id {
            return Err(Error::Argument(format!("the definition is that of flow {}", definition.id)));
        }
        let former = former.filter(|former| former.text == text);
        if former.is_none() {
            self.make_room(id, &text)?;
        }
        // With the text as it is, fields included that mean nothing here. The flow is the target's from then on.
        let hints = BatchHints::default();
        let text_of = text.as_bytes();
        let (grains, samples) = match definition.geometry() {
            Geometry::Grains { .. } => {
                (Some(self.domain.create_grains_as(&definition, text_of, &hints)?), None)
            }
            Geometry::Samples { .. } => {
                (None, Some(self.domain.create_samples_as(&definition, text_of, &hints)?))
            }
        };
        let place = (node.as_deref(), None);
        let target = Target::open_with(&self.domain, &definition, self.provider, place, None, &self.options)?;
        drop((grains, samples, former));
        // The regions are for initiators of the C++ SDK, and there may be thousands.
        let info = TargetInfo { regions: Vec::new(), bounce: None, ..target.info().clone() };
        let info = Box::new(info);
        let target = Driven::start_on(&self.engine, target)?;
        let geometry = definition.geometry();
        Ok(Mirrored { text, geometry, late: 0, node, target, info })
    }

    /// Whether the flow is still in the domain.
    pub fn has(&self, id: Uuid) -> bool {
        !matches!(self.domain.is_active(id), Err(mxl::Error::NotFound(_)))
    }

    /// Removes what a killed mirror has left, unless it has the same definition: that is continued.
    fn make_room(&self, id: Uuid, text: &str) -> Result<()> {
        match self.domain.is_active(id) {
            Err(mxl::Error::NotFound(_)) => return Ok(()),
            Ok(true) => {
                let what = format!("a program of this host writes flow {id}: it is not mirrored");
                return Err(Error::Argument(what));
            }
            _ => {}
        }
        let is_same = self.domain.definition_text(id).is_ok_and(|there| there == text.as_bytes());
        if !is_same {
            self.domain.collect_flow(id);
        }
        Ok(())
    }
}
