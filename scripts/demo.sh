#!/usr/bin/env bash
# The main job on real microVMs: fill a pool, claim, run a command inside, release, see the replacement, roll out a new
# template, and see it from inside. Everything lives in a temporary folder and is removed at the end, unless KEEP=1.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=${KEEP:-0}
dir=$(mktemp -d /tmp/poolmgr-demo.XXXXXX)
export POOLMGR_ADDR=127.0.0.1:${DEMO_PORT:-7070}
http=127.0.0.1:${DEMO_HTTP_PORT:-7071}
daemon=

title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
ctl() { show bin/poolmgrctl "$@"; }
now() { date +%s%N; }

# stop_machines ends what is left of VMs if the daemon could not remove them itself.
stop_machines() {
	local pidfile pid
	while IFS= read -r pidfile; do
		pid=$(cat "$pidfile" 2>/dev/null) || continue
		[ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q qemu-system && kill "$pid" 2>/dev/null
	done < <(find "$dir" -name pid 2>/dev/null)
	return 0
}

cleanup() {
	local code=$?
	trap - EXIT
	if [ "$code" = 0 ] && [ "$keep" = 1 ]; then
		keep_running
		exit 0
	fi
	if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
		[ "$code" = 0 ] || { echo; echo "The end of the daemon's log:"; tail -n 30 "$dir/poolmgrd.log"; }
		if bin/poolmgrctl pool delete quickstart --force >/dev/null 2>&1; then
			for _ in $(seq 100); do
				bin/poolmgrctl pool get quickstart >/dev/null 2>&1 || break
				sleep 0.2
			done
		fi
		kill -TERM "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	elif [ "$code" != 0 ] && [ -f "$dir/poolmgrd.log" ]; then
		tail -n 30 "$dir/poolmgrd.log"
	fi
	stop_machines
	rm -rf "$dir"
	[ "$code" != 0 ] || echo "Everything was removed."
	exit "$code"
}
trap cleanup EXIT

keep_running() {
	cat <<END

The daemon (process $daemon) is left running in $dir. Try:

  export POOLMGR_ADDR=$POOLMGR_ADDR
  bin/poolmgrctl pool list
  bin/poolmgrctl lease run quickstart --wait 1m -- uname -a
  bin/poolmgrctl vm list
  bin/poolmgrctl events tail
  curl -s http://$http/metrics | grep ^poolmgr_

and when you are done:

  bin/poolmgrctl pool delete quickstart --force && bin/poolmgrctl vm list   # until the list is empty
  kill $daemon && rm -r $dir
END
}

title "Starting poolmgrd with the embedded QEMU host (the first start builds the VM image)"
bin/poolmgrd --db "$dir/poolmgr.db" --listen "$POOLMGR_ADDR" --http-listen "$http" \
	--embedded-host qemu --log-format text >"$dir/poolmgrd.log" 2>&1 &
daemon=$!
for _ in $(seq 900); do
	kill -0 "$daemon" 2>/dev/null || { daemon=; exit 1; }
	curl -sf "http://$http/readyz" >/dev/null 2>&1 && break
	sleep 0.2
done
curl -sf "http://$http/readyz"

title "Creating the pool quickstart: two booted, idle microVMs"
ctl pool create --spec-file examples/quickstart/pool.yaml
ctl pool wait quickstart --available 2 --timeout 3m
ctl pool get quickstart

title "Claiming a VM, and running a command inside it"
printf '\033[2m$ bin/poolmgrctl lease claim quickstart -o json\033[0m\n'
t0=$(now)
lease=$(bin/poolmgrctl lease claim quickstart -o json | sed -n 's/.*"leaseId": *"\([^"]*\)".*/\1/p')
claim_ns=$(($(now) - t0))
[ -n "$lease" ] || { echo "the claim printed no lease id" >&2; exit 1; }
echo "claimed in $((claim_ns / 1000000)) ms: lease $lease"
ctl lease exec "$lease" -- uname -a
ctl lease exec "$lease" -- cat /proc/cmdline
ctl lease heartbeat "$lease"

title "Releasing it: the used VM is destroyed, and a fresh one takes its place"
ctl lease release "$lease"
ctl pool wait quickstart --available 2 --timeout 3m
ctl vm list

title "Changing the template: the idle VMs are replaced one at a time"
ctl pool update --spec-file examples/quickstart/pool-v2.yaml
ctl rollout status quickstart --wait --timeout 3m
ctl pool get quickstart

title "Claiming again: the new template is seen from inside"
ctl lease run quickstart --wait 1m -- cat /proc/cmdline

title "Cold boot beside warm claim"
curl -s "http://$http/metrics" | awk -v claim="$claim_ns" '
	/^poolmgr_vm_provision_duration_seconds_sum/ { sum += $2 }
	/^poolmgr_vm_provision_duration_seconds_count/ { n += $2 }
	END {
		if (n == 0) { print "no boot was measured"; exit 1 }
		boot = sum / n; warm = claim / 1e9
		printf "cold boot   %8.3f s   (mean of %d boots, from placement to the first answer from inside)\n", boot, n
		printf "warm claim  %8.3f s   (one poolmgrctl lease claim, start of the process included)\n", warm
		printf "a claim is %.0f times faster than a boot\n", boot / warm
	}'
