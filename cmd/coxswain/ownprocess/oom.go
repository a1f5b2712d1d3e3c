package ownprocess

import (
	"os"
	"runtime"
	"strconv"
)

// When the machine has no memory left, the kernel kills the process with the highest score first. The agent has the
// kubelet's score. The API server's is between that and the scores of pods, which are -997 or more.
const (
	AgentOOMScore     = -999
	APIServerOOMScore = -998
)

const oomScoreFile = "/proc/self/oom_score_adj"

// PreferToKeep lowers this process's OOM score to the given one, so that the kernel kills other processes first. It has
// no effect without the capability SYS_RESOURCE, or if the score is lower already.
func PreferToKeep(score int) {
	if runtime.GOOS == "linux" {
		writeOOMScore(oomScoreFile, score)
	}
}

func writeOOMScore(path string, score int) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if current, err := strconv.Atoi(string(trimNewline(text))); err == nil && current > score {
		_ = os.WriteFile(path, []byte(strconv.Itoa(score)), 0)
	}
}

func trimNewline(text []byte) []byte {
	if n := len(text); n > 0 && text[n-1] == '\n' {
		return text[:n-1]
	}
	return text
}
