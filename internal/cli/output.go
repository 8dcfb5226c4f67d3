package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"
)

// outputs are the forms that -o offers.
var outputs = []string{"table", "wide", "json", "yaml"}

// table is the form for people: plain columns, which also cut and awk understand.
type table struct {
	columns []string
	extra   []string // shown by -o wide only
	rows    [][]string
}

// add appends a row; its cells are those of columns and extra.
func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer, wide bool) error {
	shown := t.columns
	if wide {
		shown = append(t.columns[:len(t.columns):len(t.columns)], t.extra...)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(shown, "\t"))
	for _, row := range t.rows {
		cells := make([]string, len(shown))
		for i := range shown {
			cells[i] = cell(row[i])
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// cell makes a value safe for one cell: something to see, and nothing that moves the terminal's cursor.
func cell(value string) string {
	if value == "" {
		return "-"
	}
	return line(value)
}

// line makes text from elsewhere safe for one line of a terminal.
func line(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return '\uFFFD'
		default:
			return r
		}
	}, text)
}

// print writes a result in the form that was asked for.
func (a *app) print(m proto.Message, t table) error {
	switch a.output {
	case "json":
		text, err := jsonText(m)
		if err != nil {
			return err
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, text, "", "  "); err != nil {
			return fmt.Errorf("indent the answer: %w", err)
		}
		return a.result(append(indented.Bytes(), '\n'))
	case "yaml":
		text, err := yamlText(m)
		if err != nil {
			return err
		}
		return a.result(text)
	default:
		if err := t.write(a.out, a.output == "wide"); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
		return nil
	}
}

// printDone writes the result of a call that answers with nothing but success.
func (a *app) printDone(format string, args ...any) error {
	if a.output == "json" || a.output == "yaml" {
		return a.result([]byte("{}\n"))
	}
	a.note(format, args...)
	return nil
}

func (a *app) result(text []byte) error {
	if _, err := a.out.Write(text); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// note tells people something on stderr.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.err, line(fmt.Sprintf(format, args...)))
}

// jsonText is protojson with values that are 0 or empty written out, on one line: protojson varies its white space on
// purpose, which would make scripts that compare outputs fail now and then.
func jsonText(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("compact the answer: %w", err)
	}
	return compact.Bytes(), nil
}

func yamlText(m proto.Message) ([]byte, error) {
	text, err := jsonText(m)
	if err != nil {
		return nil, err
	}
	out, err := yaml.JSONToYAML(text)
	if err != nil {
		return nil, fmt.Errorf("encode the answer as YAML: %w", err)
	}
	return out, nil
}

// age is how long ago something was, in one or two units.
func age(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return short(time.Since(at.AsTime()))
}

// until is when something will be.
func until(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	left := time.Until(at.AsTime())
	if left < 0 {
		return short(-left) + " ago"
	}
	return "in " + short(left)
}

// short writes a duration as people read it: 45s, 12m, 5h, 3d.
func short(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func number[N ~int32 | ~int64 | ~int](n N) string { return fmt.Sprint(n) }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func plural(n int32, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
