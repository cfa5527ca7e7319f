//! All-reduces of two ranks and more. Each of the two workers is a rank, and starts others on its core.

use std::{
    env,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Instant,
};

use ofi::raw::{
    Address, AvSetAttr, Caps, CollectiveKind, CollectiveOp, Context, Datatype, EventKind, FiOp, Group, Lent,
    Piece, WaitObj,
};

use super::node::Node;
use super::run::stack;
use super::{Job, Role};
use crate::{Error, Figures, Result, link::Link, sys};

/// Set in the processes that a worker has started.
const EXTRA: &str = "OFI_BENCHES_EXTRA_RANK";

/// A rank that a worker has started.
struct Extra {
    child: Child,
    link: Link,
}

impl Drop for Extra {
    fn drop(&mut self) {
        // It has ended, or the measurement has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `job`; see [`super::run`].
pub fn run(job: &Job, ranks: usize, role: Role, link: &mut Link) -> Result<Option<Figures>> {
    let node = Node::alone(&Node::hints(job, Caps::COLLECTIVE)?, Caps::COLLECTIVE, job, WaitObj::None)?;
    let name = node.endpoint.name().map_err(stack)?.to_string();
    if env::var_os(EXTRA).is_some() {
        link.send(&name)?;
        rounds(&node, job, &link.recv::<Vec<String>>()?)?;
        link.send(&name)?;
        return link.recv::<String>().map(|_| None); // all have ended
    }
    let client = role == Role::Client;
    let mut extras = (1..ranks / 2).map(|_| extra(job, role)).collect::<Result<Vec<_>>>()?;
    let mut own = vec![name];
    for extra in &mut extras {
        own.push(extra.link.recv()?);
    }
    let theirs: Vec<String> = link.exchange(&own)?;
    // By turns on the two cores, as Open MPI's ranks are.
    let (first, second) = if client { (own, theirs) } else { (theirs, own) };
    let all: Vec<String> = first.into_iter().zip(second).flat_map(|(one, other)| [one, other]).collect();
    extras.iter_mut().try_for_each(|extra| extra.link.send(&all))?;
    let nanoseconds = rounds(&node, job, &all)?;
    for extra in &mut extras {
        extra.link.recv::<String>()?;
    }
    node.meet(link)?;
    extras.iter_mut().try_for_each(|extra| extra.link.send(&"end"))?;
    Ok(client.then(|| Figures::from_latency(8, nanoseconds / 1e3)))
}

fn extra(job: &Job, role: Role) -> Result<Extra> {
    let (theirs, ours) = UnixStream::pair().map_err(Error::io("making the link of a rank"))?;
    let this = env::current_exe().map_err(Error::io("finding this program"))?;
    let job = serde_json::to_string(job).map_err(|error| Error::Link(error.to_string()))?;
    let role = if role == Role::Client { "client" } else { "server" };
    let mut command = Command::new(this);
    command.args(["worker", "--role", role, "--job", &job]).env(EXTRA, "1");
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    // A worker that is killed drops nothing, and its ranks would spin beside the next measurement.
    sys::die_with_this_thread(&mut command);
    let child = command.spawn().map_err(Error::io("starting a rank"))?;
    Ok(Extra { child, link: Link::new(ours)? })
}

/// The nanoseconds of one of the job's all-reduces.
fn rounds(node: &Node, job: &Job, names: &[String]) -> Result<f64> {
    let names: Vec<Address> = names.iter().map(|name| name.parse().map_err(stack)).collect::<Result<_>>()?;
    let group = join(node, &names)?;
    let arena = node.memory(job, 128)?;
    let (mine, sum) = ([Piece::new(arena.base, 8)], [Piece::new(arena.base.wrapping_add(64), 8)]);
    // SAFETY: arenas live as long as the process, and a measurement does not look at what is in flight.
    let mine = unsafe { Lent::new(&mine, &[]) };
    // SAFETY: as above.
    let sum = unsafe { Lent::new(&sum, &[]) };
    let mut op = CollectiveOp::new(CollectiveKind::Allreduce, group.addr(), Context(1));
    op = op.data(Datatype::Uint64, 1, mine, sum);
    op.op = FiOp::Sum;
    let run = |count: u64| -> Result<()> {
        for _ in 0..count {
            node.endpoint.collective(&op).map_err(stack)?;
            node.wait_one(&node.tx)?;
        }
        Ok(())
    };
    run(job.iterations / 20 + 10)?;
    let begin = Instant::now();
    run(job.iterations)?;
    Ok(begin.elapsed().as_secs_f64() * 1e9 / job.iterations as f64)
}

/// Joins the group of these endpoints.
pub(super) fn join(node: &Node, names: &[Address]) -> Result<Group> {
    let set = Arc::clone(&node.av).set(&AvSetAttr::default()).map_err(stack)?;
    for member in node.av.insert(names) {
        set.insert(member.map_err(stack)?).map_err(stack)?;
    }
    let group = node.endpoint.join_collective(set.addr(), &*set, Context(1)).map_err(stack)?;
    node.wait_event(EventKind::JoinComplete)?;
    Ok(group)
}
