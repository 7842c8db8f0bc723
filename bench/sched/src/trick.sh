# Round robin of processes by chrt and taskset, modelled on the published script. Arguments: CPU
# SLICE TIME PID... SLICE is in seconds, TIME in microseconds. The loop ends after TIME; on every
# exit the processes become ordinary again.
cpu=$1 slice=$2 time=$3
shift 3
trap 'for pid in "$@"; do chrt --other -p 0 "$pid"; done' EXIT
trap 'exit 1' INT TERM

chrt --fifo -p 3 $$ || exit
taskset -c -p "$cpu" $$ || exit
now() { REPLY=${EPOCHREALTIME/[.,]/}; }
now
end=$((REPLY + time))
previous=${!#}
while now && ((REPLY < end)); do
  for next in "$@"; do
    chrt --fifo -p 2 "$next"
    chrt --fifo -p 1 "$previous"
    sleep "$slice"
    previous=$next
  done
done
