//! `ofi cp` between two network namespaces joined by a veth pair, which are two hosts to each other. The namespaces need
//! no privileges; a host that cannot have them is told by name.

use std::fs;
use std::process::{Command, Stdio};

/// Copies a long file over a link that is cut meanwhile, longer than a connection lives, then a directory.
const SCRIPT: &str = r#"
exec 2>&1
fail() { echo "FAILED: $*"; exit 1; }
server= client=
trap 'kill $far $server $client 2>/dev/null' EXIT
unshare -n sleep 300 & far=$!
tries=0
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    sleep 0.05; tries=$((tries + 1)); [ $tries -lt 200 ] || { echo "NOT RUN: no second namespace"; exit 77; }
done
{
    ip link set lo up &&
        ip link add near type veth peer name far netns $far &&
        ip address add 10.97.0.1/24 dev near &&
        ip link set near up &&
        nsenter -t $far -n sh -ec 'ip link set lo up; ip address add 10.97.0.2/24 dev far; ip link set far up'
} || { echo "NOT RUN: no veth pair"; exit 77; }

nsenter -t $far -n "$OFI" cp serve "$DIR/served" --listen 10.97.0.2:7600 >/dev/null 2>&1 & server=$!
"$OFI" cp get 10.97.0.2:7600 large "$DIR/got" & client=$!
tries=0
until [ "$(stat -c %s "$DIR/got/large.ofi-journal" 2>/dev/null || echo 0)" -gt 400 ]; do
    sleep 0.01; tries=$((tries + 1)); [ $tries -lt 3000 ] || fail "no block in time"
done
ip link set near down
[ ! -e "$DIR/got/large" ] || fail "the file was whole before the cut"
sleep 7
[ ! -e "$DIR/got/large" ] || fail "the file was whole in the cut"
ip link set near up
wait $client || fail "the copy over a cut link: $?"
"$OFI" cp get -r 10.97.0.2:7600 many "$DIR/got/many" || fail "the directory: $?"
received=$(ip -s link show near | awk '/RX:/ { getline; print $1 }')
echo "bytes over the link: $received"
"#;

#[test]
fn files_arrive_from_another_host_and_a_cut_link_does_not_end_the_copy() {
    let folder = std::env::temp_dir().join(format!("ofi-cp-hosts-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    for sub in ["served/many/sub", "got"] {
        fs::create_dir_all(folder.join(sub)).unwrap();
    }
    let content: Vec<u8> =
        (0..128 << 20).map(|place: u32| (place >> 11) as u8 ^ (place >> 19) as u8).collect();
    fs::write(folder.join("served/large"), &content).unwrap();
    let names: Vec<_> = (0..300).map(|number| format!("many/{}{number}", ["", "sub/"][number % 2])).collect();
    for (number, name) in names.iter().enumerate() {
        fs::write(folder.join("served").join(name), vec![number as u8; number * 40]).unwrap();
    }
    let mut command = Command::new("unshare");
    command.args(["-Urn", "sh", "-uc", SCRIPT]).env("OFI", env!("CARGO_BIN_EXE_ofi")).env("DIR", &folder);
    let output =
        command.env_remove("FI_PROVIDER").env_remove("FI_UDP_PEER_TIMEOUT_MS").stdin(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return println!("NOT RUN: ofi cp between two namespaces: unshare: {error}"),
    };
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || said.starts_with("unshare:") {
        fs::remove_dir_all(folder).unwrap();
        return println!("NOT RUN: ofi cp between two namespaces: {}", said.trim().replace('\n', "; "));
    }
    assert!(output.status.success(), "{said}");
    assert!(fs::read(folder.join("got/large")).unwrap() == content, "{said}");
    for name in names {
        assert!(
            fs::read(folder.join("got").join(&name)).unwrap()
                == fs::read(folder.join("served").join(&name)).unwrap()
        );
    }
    let sent = said.lines().find_map(|line| line.strip_prefix("bytes over the link: "));
    assert!(sent.unwrap().parse::<u64>().unwrap() > content.len() as u64, "{said}");
    fs::remove_dir_all(folder).unwrap();
}
