//! What a transport gives each endpoint: its ways to peers.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use ofi_api::{Address, EpOption, Errno, Error, Piece, Result, Statistic};

use super::{Arm, Held, Host, OutAccess, OutAtomic, OutMessage, OutNote, OutPlain, OutRma, Peer, Transport};
use crate::slots::SlotId;

/// What became of a posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is finished; the core reports it.
    Done,
    /// The transport opened a slot and will finish it.
    Pending,
}

/// A device's part of a shared receive context: it fills the context's receives with what comes to whichever of its
/// endpoints.
pub trait SharedReceives: Any + Send + Sync {
    /// Hands a receive to the device. It ends with [`Host::landed`], [`Host::spent`] or [`Host::received`] of the
    /// endpoint whose message took it, which may be before this returns.
    ///
    /// # Errors
    /// What the device answers; it has nothing of it then.
    ///
    /// # Safety
    /// The pieces are lent until the receive has ended, or the context was [closed](Self::close) and its endpoints'
    /// lanes have settled ([`Lanes::settle_receives`]).
    unsafe fn post(&self, id: SlotId, pieces: &[Piece]) -> Result<()>;

    /// The application has closed the context.
    fn close(&self);
}

/// What a transport may call from a thread of its own. See [`Lanes::attend`].
pub trait Attendant: Send + Sync {
    /// Has [`Lanes::let_out`] called, under the endpoint's lock.
    fn let_out(&self);
}

/// One endpoint's ways to its peers.
///
/// # Safety
/// Memory that an operation lends, here or in [`Host::op`] and [`Host::receiving`], is read or written until the
/// operation is finished there ([`Host::finish`], [`Host::received`], [`Host::abandon`]) at most, by this end, its
/// threads, peers and devices; what was not finished when the lanes are dropped is not touched after that.
pub unsafe trait Lanes<T: Transport>: Send {
    /// Makes the endpoint reachable, under `name` or one of the transport's choosing, and answers its address.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`.
    fn enable(&mut self, name: Option<&Address>) -> Result<Address>;

    /// The peer with this (normalised) address. Makes its slot at first sight, after [`Host::introduce`]; connects
    /// lazily.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` if the transport cannot have one more.
    fn peer<H: Host<T>>(&mut self, host: &mut H, address: &Address) -> Result<Peer>;

    /// Sends a short message of one piece whole, at once, if it can: then it is finished. `false` says that nothing
    /// happened, and [`Lanes::send`] is called: the way for everything that is not the common case.
    ///
    /// A message that was `injected` may be finished before it has arrived: its end is not reported.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes during the call.
    #[inline]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        _peer: Peer,
        _tag: u64,
        _from: *const u8,
        _len: usize,
        _injected: bool,
    ) -> bool {
        false
    }

    /// Begins to send a message that [`Lanes::send_now`] cannot finish at once, if it is as most are and can leave now:
    /// its operation is open then ([`Host::open`]). `false` says that nothing happened, and [`Lanes::send`] is called.
    #[inline]
    fn begin_now<H: Host<T>>(&mut self, _host: &mut H, _out: &OutPlain) -> bool {
        false
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room. An error means that nothing was sent and nothing will be reported.
    fn send<H: Host<T>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted>;

    /// Begins a read or a write as most are, at once, if it can: its operation is open then ([`Host::open`]). `false`
    /// says that nothing happened, and [`Lanes::rma`] is called: the way for everything that is not the common case.
    #[inline]
    fn access_now<H: Host<T>>(&mut self, _host: &mut H, _out: &OutAccess) -> bool {
        false
    }

    /// Reads or writes a peer's memory.
    ///
    /// # Errors
    /// As `send`.
    fn rma<H: Host<T>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted>;

    /// Changes a peer's memory atomically: once, whatever is sent again. Only for transports with
    /// [`Transport::atomic_size`].
    ///
    /// # Errors
    /// As `send`.
    fn atomic<H: Host<T>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let _ = (host, out);
        Err(ofi_api::Error::new(Errno::EOPNOTSUPP))
    }

    /// Sends a note: once, and in order with other notes to the same peer. Its memory is the core's again when this
    /// returns. Only for transports with [`Transport::note_size`].
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room.
    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let _ = out;
        Err(ofi_api::Error::new(Errno::EOPNOTSUPP))
    }

    /// A collective waits for a note of this peer: said anew after each poll, as long as it does. A transport that
    /// would not notice otherwise that the peer is gone looks for it.
    fn await_note(&mut self, _peer: Peer) {}

    /// Moves the payload behind `token` into the open receive `into`, then calls [`Host::received`].
    fn pull<H: Host<T>>(&mut self, host: &mut H, peer: Peer, token: T::Token, into: SlotId);

    /// The context that posted `op` closes while the operation is under way: its memory will not be lent any more when
    /// this returns. `true`: the operation goes on without that memory (a payload was copied, what is read goes
    /// nowhere), and ends with [`Host::finish`], which reports nothing. `false`: it is over, as far as this end goes;
    /// the core takes it out of its table. [`Lanes::settle_receives`] follows.
    fn abandon(&mut self, _peer: Peer, _id: SlotId, _op: &mut T::Op) -> bool {
        false
    }

    /// An operation of a closing context is over, and no more in the core's table; [`Lanes::abandon`] was asked before,
    /// unless there was too much to copy. [`Lanes::settle_receives`] follows.
    fn removed(&mut self, _peer: Peer, _id: SlotId, _op: T::Op) {}

    /// Receives have ended that were being filled, without [`Host::received`], or reads without [`Host::finish`]: their
    /// context was closed, or another transport's failure ended them. When this returns, nobody writes into memory of a
    /// receive that [`Host::receiving`] does not know, or of a read that [`Host::op`] does not.
    fn settle_receives<H: Host<T>>(&mut self, _host: &mut H) {}

    /// Tells the sender that the payload behind `token` is not wanted.
    fn discard(&mut self, peer: Peer, token: T::Token);

    /// Whether it takes receives before their messages ([`Host::claim`]). Asked once, after [`Lanes::enable`].
    fn claims(&self) -> bool {
        false
    }

    /// Its receives are those of a shared context. Told once, after [`Lanes::enable`].
    fn share(&mut self, _receives: &Arc<dyn SharedReceives>) {}

    /// A receive was posted, where [`Lanes::claims`] says so.
    fn receive_posted<H: Host<T>>(&mut self, _host: &mut H) {}

    /// Moves everything on: takes in what has arrived, sends what was waiting, finishes what has ended.
    fn poll<H: Host<T>>(&mut self, host: &mut H);

    /// Says before [`Lanes::enable`] whether the endpoint may use shared memory with peers of its host
    /// (`FI_OPT_SHARED_MEMORY_PERMITTED`), which it may otherwise. Only asked where [`Transport::needs_shared_memory`]
    /// does not say that there is no other way.
    fn permit_shared_memory(&mut self, _permitted: bool) {}

    /// Says before [`Lanes::enable`] what an option of the transport's own was set to ([`Transport::option`]), and how
    /// long messages may be (`FI_OPT_MAX_MSG_SIZE`).
    fn set_option(&mut self, _option: EpOption, _value: usize) {}

    /// Who has the endpoint say what it owes when a peer asks after it and the application does not look.
    fn attend(&mut self, _attendant: Weak<dyn Attendant>) {}

    /// Lets out what waits for company, such as acknowledgements, and takes nothing in.
    fn let_out<H: Host<T>>(&mut self, _host: &mut H) {}

    /// A registration is closing, and grants on it are left: gives those back that the lanes have kept, once what they
    /// are for is copied.
    fn give_back(&mut self) {}

    /// Prepares for blocking on [`Lanes::wait_fd`].
    fn arm(&mut self) -> Arm;

    /// Readable when an armed endpoint has something to poll for. `None` where the transport cannot block.
    fn wait_fd(&self) -> Option<RawFd>;

    /// Sends a connection packet of up to [`MAX_PACKET`](super::MAX_PACKET) bytes, in order with others. It arrives, or
    /// [`Host::packet_lost`] tells. With `watch` that is told too if `to` goes away later, within a second, until it is
    /// joined or another packet is sent.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a transport without connections.
    fn packet(&mut self, _to: &Address, _packet: &[u8], _watch: bool) -> Result<()> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Takes over what the port kept with the request that the endpoint accepts ([`Port::held`](super::Port::held)).
    /// [`Lanes::join`] follows.
    ///
    /// # Errors
    /// What the transport answers; the acceptance fails with it.
    fn adopt(&mut self, _held: &Held) -> Result<()> {
        Ok(())
    }

    /// Makes `address` the one peer of a connected endpoint, number 0; nobody else is listened to. `first`: this end
    /// begins with whatever connecting takes.
    ///
    /// # Errors
    /// What that answers.
    fn join<H: Host<T>>(&mut self, _host: &mut H, _address: &Address, _first: bool) -> Result<()> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// The connection is over. With `drain`, what the peer sent before is taken first; then [`Host::fail_peer`].
    fn part<H: Host<T>>(&mut self, _host: &mut H, _drain: bool) {}

    /// Whether all connection packets that were sent are known to have arrived, or to be lost. Where
    /// [`Transport::KEEPS`], the endpoint is polled by a thread until then.
    fn is_settled(&self) -> bool {
        true
    }

    /// Joins a multicast group: what is sent to it arrives here from now on. Answers the address to send to.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a transport without multicast; `FI_EINVAL` for what is no group; what the system answers.
    fn join_group(&mut self, _group: &Address) -> Result<Address> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Leaves a group.
    fn leave_group(&mut self, _group: &Address) {}

    /// Appends the transport's counters.
    fn statistics(&self, into: &mut Vec<Statistic>);

    /// Appends what is known of the way to one peer.
    fn peer_statistics(&self, _peer: Peer, _into: &mut Vec<Statistic>) {}
}
