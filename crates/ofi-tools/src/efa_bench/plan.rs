//! The measurements: each program, over one NIC or all, in host memory or a GPU's.

use super::facts::Facts;

/// The program to run, and its library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    OurPingpong,
    /// C's program on our library. That program limits the speed.
    CPingpongOnOurs,
    CPingpong,
    /// `mr-bench`, which moves every transfer over all of its NICs.
    OurRails,
}

/// A program with its arguments on both sides.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub program: Program,
    /// The kind of measurement: `tagged`, `msg`, or remote memory.
    pub kind: String,
    /// The domains of the NICs that it uses.
    pub nics: Vec<String>,
    /// The kind of memory: `host` or `cuda`.
    pub memory: &'static str,
    pub args: Vec<String>,
}

/// The measurements, and the reasons for omitted ones.
#[derive(Debug, Default)]
pub struct EfaPlan {
    pub measurements: Vec<Measurement>,
    pub left_out: Vec<String>,
}

impl Measurement {
    /// The heading of its rows.
    pub fn title(&self) -> String {
        let program = match self.program {
            Program::OurPingpong => "our fi_pingpong",
            Program::CPingpongOnOurs => "C's fi_pingpong on this library",
            Program::CPingpong => "C's fi_pingpong on C's library",
            Program::OurRails => "mr-bench",
        };
        format!("{program}, {}, {}, {} memory", self.kind, counted(&self.nics), self.memory)
    }
}

/// One NIC by its name, several by their number.
pub fn counted(nics: &[String]) -> String {
    match nics {
        [nic] => nic.clone(),
        nics => format!("{} NICs", nics.len()),
    }
}

impl EfaPlan {
    /// The measurements of two hosts. Both ends compute the same plan.
    pub fn of(ours: &Facts, theirs: &Facts, quick: bool) -> Self {
        let mut plan = Self::default();
        plan.pingpongs(ours, theirs, quick);
        plan.rails(ours, theirs, quick);
        plan
    }

    fn pingpongs(&mut self, ours: &Facts, theirs: &Facts, quick: bool) {
        let mut programs = vec![Program::OurPingpong];
        match [ours, theirs].iter().all(|facts| facts.c_program().is_some()) {
            true => {
                if [ours, theirs].iter().all(|facts| facts.has_our_library()) {
                    programs.push(Program::CPingpongOnOurs);
                } else {
                    let why = "an instance has no libfabric.so.1 of ours beside its programs (--library DIR)";
                    self.left_out.push(format!("C's fi_pingpong on this library: {why}"));
                }
                programs.push(Program::CPingpong);
            }
            false => self.left_out.push(
                "C's fi_pingpong: not on both instances (Amazon's installer brings it, in /opt/amazon/efa/bin)"
                    .into(),
            ),
        }
        let count = if quick { "5" } else { "10000" };
        // Two sizes show whether the programs run.
        let sizes: &[&str] = if quick { &["64", "65536"] } else { &["all"] };
        let nics: Vec<String> = ours.nics().into_iter().take(1).collect();
        for program in programs {
            for (kind, size) in
                ["tagged", "msg"].into_iter().flat_map(|kind| sizes.iter().map(move |size| (kind, *size)))
            {
                let args = ["-p", "efa", "-e", "rdm", "-m", kind, "-I", count, "-S", size].map(Into::into);
                self.measurements.push(Measurement {
                    program,
                    kind: kind.into(),
                    nics: nics.clone(),
                    memory: "host",
                    args: args.into(),
                });
            }
        }
    }

    /// Over one NIC, and over all that have the same names on both instances.
    fn rails(&mut self, ours: &Facts, theirs: &Facts, quick: bool) {
        let (mine, others) = (ours.nics(), theirs.nics());
        let shared: Vec<String> = mine.iter().filter(|nic| others.contains(nic)).cloned().collect();
        if shared.len() < mine.len().max(others.len()) {
            self.left_out.push(format!(
                "mr-bench: NICs whose names are not on both instances: {} of {} and {} are used",
                shared.len(),
                mine.len(),
                others.len()
            ));
        }
        let mut memories = vec!["host"];
        match [ours, theirs].iter().all(|facts| facts.gpus() > 0) {
            true => memories.push("cuda"),
            false => self.left_out.push("device memory: no CUDA device on both instances".into()),
        }
        let mut sets: Vec<Vec<String>> = vec![shared.iter().take(1).cloned().collect(), shared];
        sets.dedup();
        for memory in memories {
            for nics in sets.iter().filter(|nics| !nics.is_empty()) {
                // One thread does not fill many NICs.
                let threads: &[&str] = if nics.len() > 1 { &["1", "4"] } else { &["1"] };
                for count in threads {
                    let rails = nics.iter().map(|nic| format!("efa/{nic}")).collect::<Vec<_>>().join(",");
                    let args = ["--rails", &rails, "--json", "--threads", count, "--memory", memory];
                    let mut args: Vec<String> = args.map(Into::into).into();
                    if quick {
                        let few = ["--sizes", "64K,1M", "--batches", "1", "--iterations", "5", "--check"];
                        args.extend(few.map(Into::into));
                    }
                    let plural = if *count == "1" { "" } else { "s" };
                    self.measurements.push(Measurement {
                        program: Program::OurRails,
                        kind: format!("remote memory, {count} thread{plural}"),
                        nics: nics.clone(),
                        memory,
                        args,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(nics: &[&str], gpus: u64, c: bool) -> Facts {
        let c = c.then_some("/opt/amazon/efa/bin/fi_pingpong");
        Facts::of_line(
            &serde_json::json!({ "nics": nics, "gpus": gpus, "C's program": c, "our library": "2.6" })
                .to_string(),
        )
        .unwrap()
    }

    #[test]
    fn one_nic_and_all_are_measured_and_what_is_not_is_said() {
        let (a, b) = (host(&["n1", "n2", "n3"], 8, true), host(&["n2", "n3", "n4"], 8, true));
        for plan in [EfaPlan::of(&a, &b, false), EfaPlan::of(&b, &a, false)] {
            let rails = plan.measurements.iter().filter(|one| one.program == Program::OurRails);
            let found: Vec<_> = rails.map(|one| (one.nics.join(" "), one.memory)).collect();
            let of = |memory| [("n2", memory), ("n2 n3", memory), ("n2 n3", memory)];
            let wanted: Vec<_> = [of("host"), of("cuda")]
                .concat()
                .iter()
                .map(|(nics, memory)| (nics.to_string(), *memory))
                .collect();
            assert_eq!(found, wanted);
            assert!(plan.left_out.iter().any(|note| note.contains("2 of 3 and 3")), "{:?}", plan.left_out);
            assert_eq!(plan.measurements.len(), 12);
        }
        let plan = EfaPlan::of(&host(&["n"], 0, false), &host(&["n"], 8, true), false);
        let titles: Vec<String> = plan.measurements.iter().map(Measurement::title).collect();
        assert_eq!(
            titles,
            [
                "our fi_pingpong, tagged, n, host memory",
                "our fi_pingpong, msg, n, host memory",
                "mr-bench, remote memory, 1 thread, n, host memory"
            ]
        );
        assert_eq!(plan.left_out.len(), 2, "{:?}", plan.left_out);
        // Without a name in common, messages are measured.
        assert!(EfaPlan::of(&host(&["a"], 0, false), &host(&["b"], 0, false), true).measurements.len() >= 2);
    }
}
