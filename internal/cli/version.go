package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Tell which build of poolmgrctl this is", Args: none,
		RunE: func(*cobra.Command, []string) error {
			facts := map[string]string{
				"version": a.build.Version, "commit": a.build.Commit,
				"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
			}
			var text []byte
			var err error
			switch a.output {
			case "json":
				text, err = json.MarshalIndent(facts, "", "  ")
				text = append(text, '\n')
			case "yaml":
				text, err = yaml.Marshal(facts)
			default:
				text = fmt.Appendf(nil, "poolmgrctl %s (commit %s, %s, %s)\n", facts["version"], facts["commit"], facts["go"], facts["platform"])
			}
			if err != nil {
				return fmt.Errorf("encode the version: %w", err)
			}
			return a.result(text)
		},
	}
}
