package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxSubject is how many columns a subject may have: git log --oneline fits on a line of 80.
	maxSubject = 72
	// maxSilent is how many lines of code may change without a body that says why.
	maxSilent = 10
)

var (
	// subjectForm is "area: what it does". Several areas are separated by commas.
	subjectForm = regexp.MustCompile(`^[\w./-]+(?:, [\w./-]+)*: (\S.*)$`)
	// autosquash is the subject of a commit that git rebase --autosquash joins with another.
	autosquash = regexp.MustCompile(`^(?:fixup|squash|amend)! `)
	// trailer is a line such as "Signed-off-by: …".
	trailer = regexp.MustCompile(`^[A-Z][A-Za-z-]*: \S`)
)

// problems returns the faults of a message. changed returns how many lines of code the commit changes; it is
// called only if the message has no body.
func problems(message string, changed func() (int, error)) ([]string, error) {
	subject, body, _ := strings.Cut(strings.TrimSpace(message), "\n")
	var found []string
	if n := utf8.RuneCountInString(subject); n > maxSubject {
		found = append(found, fmt.Sprintf("the subject has %d columns, and may have %d", n, maxSubject))
	}
	if m := subjectForm.FindStringSubmatch(subject); m == nil {
		found = append(found, `the subject must have the form "area: what it does"`)
	} else if word := notImperative(m[1]); word != "" {
		found = append(found, fmt.Sprintf("%q is not the imperative form of a verb: write what the commit does: "+
			`"reject", not "rejects", "rejected", "rejecting" or "pods are rejected"`, word))
	}
	if body != "" && !strings.HasPrefix(body, "\n") {
		found = append(found, "the second line must be empty")
	}
	if slices.ContainsFunc(strings.Split(body, "\n"), isReason) {
		return found, nil
	}
	n, err := changed()
	if n > maxSilent {
		found = append(found, fmt.Sprintf("%d lines of code change: a body must say why", n))
	}
	return found, err
}

func isReason(line string) bool {
	return strings.TrimSpace(line) != "" && !trailer.MatchString(line)
}

// notImperative returns the words at the beginning of a text that show that it is not in the imperative.
func notImperative(text string) string {
	words := strings.Fields(strings.ToLower(text))
	first := strings.Trim(words[0], `"'.,;()`+"`")
	if len(words) > 1 && slices.Contains(auxiliaries, words[1]) {
		return first + " " + words[1]
	}
	for _, ending := range endings {
		if strings.HasSuffix(first, ending.letters) && !slices.Contains(ending.verbs, first) {
			return first
		}
	}
	if slices.Contains(others, first) {
		return first
	}
	return ""
}

// auxiliaries follow a subject: "the watch is resumed".
var auxiliaries = strings.Fields(`is are was were has have had does did can cannot can't could may might must shall
	should will would isn't aren't doesn't don't won't`)

// endings are those of gerunds, past tenses, third persons and plurals, with the verbs that have them by themselves.
var endings = []struct {
	letters string
	verbs   []string
}{
	{"ing", strings.Fields("bring cling fling ping ring sing sling spring string swing wring")},
	{"ed", strings.Fields("bed bleed breed embed exceed feed heed need proceed seed shed shred speed succeed weed")},
	{"s", strings.Fields(`access address alias assess bias bless bypass canvas compress cross decompress discuss dismiss
		dress express focus guess harness impress miss obsess pass press process progress repress stress suppress toss
		trespass witness`)},
}

// others are words that begin a sentence but are no imperatives, and irregular past tenses.
var others = strings.Fields(`a an the this that these those it its he she they we you i there here
	what who whoever whatever which whose where when while why how if as since until because although though
	all any both each every few many most much no nobody none nothing one several some someone such two three
	and but or nor so yet not also only just even still again now then later
	about after against at before behind below between beyond by during for from in inside into of off on onto out
	outside over per through to toward towards under up upon with within without
	another better best faster fewer first former good great last latest less more new next old other same
	slower smaller larger various wrong
	am been is are was were has have had does did done can cannot could may might must shall should will would
	began begun broke broken brought built came caught chose chosen did dealt drew drawn fell fallen felt found
	forgot forgotten froze frozen gave given gone got grew grown heard held hid hidden kept knew known laid led left
	lent lost made meant met paid ran rose said sat saw seen sent shook shown slept sold sought spent spoke spoken stood
	stole stolen stuck struck swept taken taught thought threw thrown told took torn understood went withdrew woke won
	wore wrote written`)
