# A set-up line that fails ends the job, and a new attempt at the cell says which line and why.
gnnhpc_words="$run/logs/.set-up-${SLURM_JOB_ID:-$$}"

# One line of ASCII that JSON can hold.
gnnhpc_text() {
    local text
    text=$(LC_ALL=C tr -cs '[:graph:]' ' ')
    [ ${#text} -le 400 ] || text="${text:0:200} ... ${text: -200}"
    text=${text//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text# }
    printf '%s' "${text% }"
}

gnnhpc_record() {
    local cell attempt number=1 place
    cell=${gnnhpc_id:-$(grep -F -m 1 "$gnnhpc_cell, \"index\": $index, " "$run/manifest.jsonl" |
        sed 's/"experiment".*//; s/.*"id": "//; s/".*//')}
    [ -n "$cell" ] && mkdir -p "$run/cells/$cell" || return
    for place in "$run/cells/$cell"/attempt-*; do
        place=${place##*-}
        case $place in *[!0-9]* | '') ;; *) [ "$place" -lt "$number" ] || number=$((place + 1)) ;; esac
    done
    attempt="$run/cells/$cell/attempt-$number"
    until mkdir "$attempt" 2>/dev/null; do
        [ -e "$attempt" ] || return
        number=$((number + 1))
        attempt="$run/cells/$cell/attempt-$number"
    done
    printf '{"rank": 0, "host": "%s", "step": null, "phase": null, "error": "%s", "at": "%s", "job": "%s"}\n' \
        "${SLURMD_NODENAME:-$(uname -n)}" "$1" "$(date -u +%Y-%m-%dT%H:%M:%S+00:00)" \
        "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" \
        >"$attempt/.failure.tmp" &&
        mv "$attempt/.failure.tmp" "$attempt/rank-0000.failure.json"
}

gnnhpc_fail() {
    gnnhpc_disarm
    set +eu
    local line words
    line=$(printf '%s' "$gnnhpc_line" | gnnhpc_text)
    words=$(gnnhpc_text <"$gnnhpc_words")
    gnnhpc_record "set-up line '$line' $1: ${words:-it said nothing}"
    rm -f "$gnnhpc_words"
    echo "error: set-up line '$gnnhpc_line' $1" >&2
    exit 1
}

# Environment Modules 3 end with status 0 after an error.
gnnhpc_check() {
    cat "$gnnhpc_words"
    [ "$1" -eq 0 ] || gnnhpc_fail "failed with status $1"
    case $gnnhpc_line in
    "module load "*)
        if grep -qwE 'ERROR|Unable to locate' "$gnnhpc_words"; then
            gnnhpc_fail "failed with status 0"
        fi
        ;;
    esac
}

gnnhpc_ended() {
    local status=$?
    cat "$gnnhpc_words"
    gnnhpc_fail "ended the job with status $status"
}

# A line may have set a trap of its own, which stays.
gnnhpc_disarm() {
    case $(trap -p EXIT) in *gnnhpc_ended*) trap - EXIT ;; esac
}

gnnhpc_done() {
    gnnhpc_disarm
    rm -f "$gnnhpc_words"
}

: >"$gnnhpc_words"
trap gnnhpc_ended EXIT
