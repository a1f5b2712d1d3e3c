package kubectllite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// clockPath is the path of the server's manual clock: GET shows it, POST moves it.
const clockPath = "/debug/clock"

func newClock(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clock",
		Short: "Show or move the manual clock of a control plane",
		Long: "Show or move the clock of a control plane that was started with --clock=manual. Such a clock stands " +
			"still until it is moved. It moves from one due time to the next, and at each of them controllers, " +
			"scheduler and nodes do their work.",
		Example: `  kubectl-lite clock
  kubectl-lite clock advance 1h
  kubectl-lite clock advance --to 2031-05-01T08:00:00Z`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return showClock(cmd.Context(), s) },
	}
	cmd.AddCommand(newClockAdvance(s))
	return cmd
}

func newClockAdvance(s *session.Session) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "advance (DURATION | --to=TIME)",
		Short: "Move the clock, and wait until everything has come to rest",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (to != "") {
				return session.UsageErrorf(cmd, "either a duration or --to is required")
			}
			move := map[string]string{"to": to}
			if len(args) == 1 {
				if d, err := time.ParseDuration(args[0]); err != nil || d < 0 {
					return fmt.Errorf("%q is no duration to move a clock by: give one such as 90s, 30m or 24h", args[0])
				}
				move = map[string]string{"advance": args[0]}
			} else if _, err := time.Parse(time.RFC3339, to); err != nil {
				return fmt.Errorf("--to: %q is no time: give one such as 2031-05-01T08:00:00Z", to)
			}
			return moveClock(cmd.Context(), s, move)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the time to move the clock to, such as 2031-05-01T08:00:00Z")
	return cmd
}

type clockState struct {
	Now time.Time `json:"now"`
}

func showClock(ctx context.Context, s *session.Session) error {
	client, err := s.KubernetesClientSet()
	if err != nil {
		return err
	}
	now, err := readClock(client.RESTClient().Get().AbsPath(clockPath).Do(ctx))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(s.Out, now.Format(time.RFC3339Nano))
	return err
}

func moveClock(ctx context.Context, s *session.Session, move map[string]string) error {
	client, err := s.KubernetesClientSet()
	if err != nil {
		return err
	}
	body, err := json.Marshal(move)
	if err != nil {
		return err
	}
	before, err := readClock(client.RESTClient().Get().AbsPath(clockPath).Do(ctx))
	if err != nil {
		return err
	}
	began := time.Now()
	now, err := readClock(client.RESTClient().Post().AbsPath(clockPath).
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "%s, %s later (it took %s)\n", now.Format(time.RFC3339Nano), now.Sub(before),
		time.Since(began).Round(time.Millisecond))
	return err
}

// readClock reads the time from a response.
func readClock(answer rest.Result) (time.Time, error) {
	err := answer.Error() // unlike the error of Raw it has the server's message
	if apierrors.IsNotFound(err) {
		return time.Time{}, fmt.Errorf("the clock of this server goes by itself: coxswain up --clock=manual has one " +
			"that can be moved")
	}
	if err != nil {
		return time.Time{}, err
	}
	content, err := answer.Raw()
	if err != nil {
		return time.Time{}, err
	}
	var state clockState
	if err := json.Unmarshal(content, &state); err != nil {
		return time.Time{}, fmt.Errorf("reading the clock: %w", err)
	}
	return state.Now, nil
}
