//! Describes a packet in words.

use std::fmt::Write;

use ofi_rdm::wire::header::flag;
use ofi_rdm::wire::{Accept, Frame, Header, Init, Kind, Malformed, Retry};

/// A line that describes a datagram. `None` if it is not of this protocol.
pub fn describe(bytes: &[u8]) -> Option<String> {
    let (head, body) = match Header::parse(bytes) {
        Ok(parsed) => parsed,
        Err(Malformed::Version(_) | Malformed::Truncated | Malformed::Kind(_)) => return None,
        Err(why) => return Some(format!("damaged: {why}")),
    };
    let mut text = format!("{:?} session {:016x}", head.kind, head.session);
    for (bit, name) in [
        (flag::CHECKED, "checked"),
        (flag::URGENT, "urgent"),
        (flag::ALIVE, "alive"),
        (flag::SEALED, "sealed"),
    ] {
        if head.flags & bit != 0 {
            let _ = write!(text, " {name}");
        }
    }
    let _ = match head.kind {
        Kind::Data => {
            let _ = write!(text, " number {}", head.number);
            if head.flags & flag::SEALED == 0 {
                frames(&mut text, body)
            } else {
                write!(text, " {} bytes", body.len())
            }
        }
        Kind::Init => match Init::parse(body) {
            Ok(init) => write!(
                text,
                " as {:016x} epoch {:016x} attempt {} cookie {:016x} window {} packet {} to {}",
                init.session,
                init.epoch,
                init.attempt,
                init.cookie,
                init.params.window,
                init.params.max_packet,
                init.server
            ),
            Err(why) => write!(text, " damaged: {why}"),
        },
        Kind::Accept if head.flags & flag::SEALED != 0 => write!(text, " {} bytes", body.len()),
        Kind::Accept => match Accept::parse(body) {
            Ok(accept) => write!(
                text,
                " as {:016x} epoch {:016x} attempt {} window {} packet {}",
                accept.session, accept.epoch, accept.attempt, accept.params.window, accept.params.max_packet
            ),
            Err(why) => write!(text, " damaged: {why}"),
        },
        Kind::Retry => match Retry::parse(body) {
            Ok(retry) => write!(text, " cookie {:016x}", retry.cookie),
            Err(why) => write!(text, " damaged: {why}"),
        },
        Kind::Versions => write!(text, " {body:?}"),
        Kind::Ask | Kind::Answer => write!(text, " from {:016x}", head.number),
        Kind::Refused => {
            let why = match head.number {
                1 => "the key",
                2 => "the cipher suites",
                3 => "an address that was not the requested one",
                _ => "another reason",
            };
            write!(text, " for {why}")
        }
        Kind::Reset | Kind::Wait => Ok(()),
    };
    Some(text)
}

fn frames(text: &mut String, mut rest: &[u8]) -> std::fmt::Result {
    loop {
        let (frame, after) = match Frame::parse(rest) {
            Ok(Some(parsed)) => parsed,
            Ok(None) if rest.is_empty() => return Ok(()),
            Ok(None) => return write!(text, " | {} bytes of padding", rest.len()),
            Err(why) => return write!(text, " | damaged: {why}"),
        };
        rest = after;
        match frame {
            Frame::Ping => write!(text, " | ping")?,
            Frame::Ack(ack) => {
                write!(text, " | ack")?;
                for run in ack.runs() {
                    write!(text, " {}-{}", run.start, run.end - 1)?;
                }
                write!(text, " after {} us", ack.delay_us)?;
            }
            Frame::Data { stream, offset, bytes } => {
                write!(text, " | {stream:?} {offset}+{}", bytes.len())?;
            }
            Frame::Credit { stream, limit } => write!(text, " | credit {stream:?} {limit}")?,
            Frame::Marks { count } => write!(text, " | {count} marked for congestion")?,
            Frame::Close { reason } => write!(text, " | close {reason}")?,
        }
    }
}
